"""Fine-tune a run on conversations: it learns what the assistant says."""

from typing import Any

from danalab.cli._shared.training_job import finetuning, resolved_stage, run_job
from danalab.post.settings import SftConfig
from danalab.post.settings import SftFlags as Flags


def run(flags: Flags) -> int:
    """Fine-tune a run on conversations, into a run folder of its own; the same command resumes it."""
    return run_job(lambda: finetuning(flags, SftConfig), as_json=flags.json)


def resolved_config(flags: Flags) -> dict[str, Any]:
    """The resolved configuration, for --print-config."""
    return resolved_stage(lambda: finetuning(flags, SftConfig))
