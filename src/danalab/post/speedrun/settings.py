"""Settings of `danalab speedrun`; they are its flags. Need no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from danalab.train.config.fields import Count, NonNegative, Section, setting


@dataclass(frozen=True, kw_only=True)
class SpeedrunConfig(Section):
    """Settings of a speedrun."""

    preset: Literal["cpu-tiny", "gpu-small", "gpu-d12"] = "cpu-tiny"
    """Sizes of everything: cpu-tiny takes minutes on two cores and no network; gpu-small an hour, gpu-d12 hours on a
    GPU."""
    out: Path = setting(Path("speedrun"), kind="job")
    """Folder for everything; the same command continues after an interruption."""
    opt: str = "adana"
    """Optimizer of the base run and of mid-training."""
    sft_opt: str | None = None
    """Optimizer of fine-tuning; default --opt."""
    rl_opt: str | None = None
    """Optimizer of reinforcement learning; default --opt."""
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """Seed of the weights, of the order of all data, and of the sampling."""
    text: tuple[Path, ...] = ()
    """Text files or folders, of several documents, for the base run in place of the preset's corpus."""
    chats: tuple[str, ...] = ()
    """Further conversations for mid-training and fine-tuning: FILE.jsonl, or tasks."""
    nproc: Count | None = setting(None, kind="job")
    """Processes on this machine, one for each GPU."""
    device: str | None = setting(None, kind="job")
    """cpu, cuda or cuda:N; default cuda where there is one."""
    dollars_per_hour: NonNegative | None = setting(None, kind="job")
    """Price of one device, for the cost in the report."""
