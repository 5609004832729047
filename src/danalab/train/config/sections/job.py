"""Settings of one job of a run: its folder, and where it starts and stops."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from danalab.train.config.fields import Count, Section, setting


@dataclass(frozen=True, kw_only=True)
class JobSettings(Section):
    """Run folder, start and end of this job."""

    title: ClassVar[str] = "run folder and job"

    run_dir: Path | None = setting(None, kind="job", main=True, aliases=("output-dir",))
    """The run folder; default runs/NAME ($RESULTS_BASE_FOLDER/NAME where that is set)."""
    name: str | None = setting(None, kind="job")
    """Name of the run; default made of architecture, optimizer, size and schedule."""
    auto_resume: bool = setting(True, kind="job")
    """Resume from the newest valid checkpoint of the run folder; --no-auto-resume refuses a folder that has any."""
    resume_from: Path | None = setting(None, kind="job")
    """Resume from this checkpoint of this or another run: a step folder, a file of it, or a run folder (its newest)."""
    extend_to: Count | None = setting(None, kind="job")
    """Total number of steps to which a shorter run is extended; cos_inf continues at its final rate."""
    iterations_to_run: Count | None = setting(None, kind="job")
    """Stop cleanly after this number of steps of this job."""
    json: bool = setting(False, kind="job")
    """Print the summary as one JSON object on standard output."""
