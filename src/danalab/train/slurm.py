"""Job scripts for SLURM that requeue until a run's last step, submitted with `sbatch`.

A script is self-contained: resources, flags of the runs, and shell functions that requeue the job (`slurm_job.sh`).
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge

from danalab.errors import UserError
from danalab.files import write_atomically
from danalab.train.config.flags import Count, Natural, Section, setting

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LIBRARY = Path(__file__).parent / "system" / "slurm_job.sh"
COMMAND = (sys.executable, "-m", "danalab")
"""What starts `danalab` on the cluster by default: this installation."""


@dataclass(frozen=True, kw_only=True)
class Resources(Section):
    """Resources of a job, as sbatch takes them."""

    title: ClassVar[str] = "SLURM"

    account: str | None = setting(None, "SLURM: account that is charged; default the cluster's.", main=True)
    partition: str | None = setting(None, "Partition; default the cluster's.")
    time: str = setting(
        "24:00:00",
        "SLURM: time limit of one job, as sbatch reads it; the run continues in the next one.",
        main=True,
    )
    nodes: Count = setting(1, "SLURM: machines of a run.", main=True)
    gpus: Natural = setting(
        1, "SLURM: GPUs on each machine, one rank each; 0: one process on the CPU.", main=True
    )
    cpus: Count = setting(8, "CPU cores for each rank.")
    mem: str = setting("32G", "Memory on each machine.")
    grace_seconds: Annotated[int, Ge(10)] = setting(
        300, "Warning before the time limit, in which the run is checkpointed [s]."
    )
    sbatch: tuple[str, ...] = setting(
        (), "More options of sbatch, without their hyphens: --sbatch constraint=a100 qos=low."
    )

    setup: tuple[str, ...] = setting((), 'Shell commands that run first: --setup "module load cuda".')
    at_once: Count | None = setting(
        None, "Largest number of runs of an array that run at the same time; default all."
    )

    @property
    def options(self) -> list[str]:
        """The additional options of sbatch, with their hyphens."""
        return ["--" + option.removeprefix("--") for option in self.sbatch]

    @property
    def ranks(self) -> int:
        """Processes of the job."""
        return self.nodes * max(1, self.gpus)


@dataclass(frozen=True)
class SlurmJob:
    """One run, or several as an array."""

    name: str
    runs: Sequence[Sequence[str]]
    """Flags of `danalab train`, for each run."""
    resources: Resources
    log_folder: Path
    command: Sequence[str] = COMMAND
    """The command that starts `danalab` on the cluster."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(f"--job-name {self.name}: letters, digits, '.', '_' and '-' are expected")

    @property
    def script(self) -> Path:
        return self.log_folder / f"{self.name}.sh"

    def text(self) -> str:
        resources, several = self.resources, len(self.runs) > 1
        folder = self.log_folder.resolve()
        log_file = f"{folder}/{self.name}".replace("%", "%%") + f"{'-%a' if several else ''}.log"
        options = [
            f"--job-name={self.name}",
            "--requeue",
            f"--signal=TERM@{resources.grace_seconds}",
            "--open-mode=append",
            f"--output={_quoted(log_file)}",
            f"--time={resources.time}",
            f"--nodes={resources.nodes}",
            f"--ntasks-per-node={max(1, resources.gpus)}",
            f"--cpus-per-task={resources.cpus}",
            f"--mem={resources.mem}",
        ]
        if resources.gpus:
            options.append(f"--gpus-per-node={resources.gpus}")
        if several:
            limit = f"%{resources.at_once}" if resources.at_once else ""
            options.append(f"--array=0-{len(self.runs) - 1}{limit}")
        options += [
            f"--{name}={value}" for name in ("account", "partition") if (value := getattr(resources, name))
        ]
        options += resources.options
        lines = ["#!/usr/bin/env bash", *(f"#SBATCH {option}" for option in options), "set -euo pipefail", ""]
        lines += [f"cd {_quoted(Path.cwd())}", *resources.setup, ""]
        library = _LIBRARY.read_text(encoding="utf-8").rstrip()
        lines += ["# ---- requeue ----", "", library, ""]
        lines += [
            f"export DANALAB_PROGRESS_FOLDER={_quoted(folder)}",
            f"DANALAB_SCRIPT={_quoted(self.script.resolve())}",
            "DANALAB_ARGUMENTS=()",
            "",
        ]
        if several:
            lines.append("case $SLURM_ARRAY_TASK_ID in")
            lines += [f"    {n}) run=({_quoted(*run)}) ;;" for n, run in enumerate(self.runs)]
            lines.append("esac")
        else:
            lines.append(f"run=({_quoted(*self.runs[0])})")
        lines.append(f'danalab_job {" ".join(map(_quoted, self.command))} train "${{run[@]}}"')
        return "\n".join(lines) + "\n"

    def write(self) -> Path:
        """Write the script, ready to be run."""
        self.log_folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.script, self.text())
        self.script.chmod(0o755)
        return self.script


def submit(script: Path) -> str:
    """Submit a script by `sbatch`; returns its output."""
    if shutil.which("sbatch") is None:
        raise UserError(
            f"sbatch is not installed: the script is written; submit it on the cluster: sbatch {script}"
        )
    done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"sbatch refused {script}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def _quoted(*values: object) -> str:
    """Values as words of a script, for the shell and sbatch."""
    return shlex.join(map(str, values))
