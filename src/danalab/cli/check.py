"""Check a training run before it is launched: data, loss at step 0, memory, resume, throughput, overfitting."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Annotated, ClassVar

from annotated_types import Ge

from danalab.train.config.fields import Count
from danalab.train.config.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Flags(TrainConfig):
    title: ClassVar[str] = ""

    check_steps: Annotated[int, Ge(2)] = 6
    """First steps of the run to train, twice: in one job, and in two of half the steps."""
    overfit_steps: Count = 100
    """Steps on one sequence, which must be learned by heart."""


def run(flags: Flags) -> int:
    """Check a training run before it is launched; takes the flags of danalab train. Exit code 1: a check failed."""
    from danalab.train.preflight import check_run

    config = TrainConfig(**{field.name: getattr(flags, field.name) for field in fields(TrainConfig)})
    found = []
    for verdict in check_run(config, steps=flags.check_steps, overfit_steps=flags.overfit_steps):
        found.append(verdict)
        if not flags.json:
            print(f"{verdict.status.upper() if verdict.status == 'failed' else verdict.status:<8} "
                  f"{verdict.name:<9} {verdict.text}", flush=True)  # fmt: skip
    failed = sum(verdict.status == "failed" for verdict in found)
    if flags.json:
        print(json.dumps({"ready": not failed, "checks": [asdict(verdict) for verdict in found]}))
    else:
        print("ready to launch" if not failed else f"not ready: {failed} of {len(found)} checks failed")
    return 1 if failed else 0
