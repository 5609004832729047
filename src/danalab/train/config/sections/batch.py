"""Settings of the batch and of the length of a run. None means automatic."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from danalab.train.config.fields import Count, Natural, NonNegative, Positive, Section, setting


@dataclass(frozen=True, kw_only=True)
class BatchSettings(Section):
    """Batch and length of the run."""

    title: ClassVar[str] = "batch and length"

    batch_size: Count | None = setting(None, kind="execution", main=True)
    """Sequences of one micro-batch on one rank; default 32, or a divisor of --global-batch."""
    acc_steps: Count | None = setting(None, kind="execution", aliases=("gradient-accumulation",))
    """Micro-batches in a step; default 1, or the number that --global-batch needs."""
    global_batch: Count | None = None
    """Sequences in a step, over all ranks and micro-batches; default batch-size x ranks x acc-steps."""
    batch_ramp: str | None = None
    """Smaller global batches at first: SEQUENCES:STEP,...; 8:1000,16:3000 is 8 before step 1000, 16 before 3000."""
    iterations: Count | None = setting(None, main=True)
    """Length of the run [steps]; default by --tokens-per-param."""
    epochs: Positive | None = setting(None, kind="input")
    """Length of the run in passes over the data, in place of --iterations."""
    tokens_per_param: NonNegative = setting(20.0, kind="input")
    """Length of the run where --iterations isn't given [tokens a parameter]."""
    horizon_basis: Literal["total", "non-emb"] = setting("total", kind="input")
    """Parameters that --tokens-per-param counts."""
    warmup_steps: Natural | None = None
    """Warm-up [steps]; default iterations / 50; in short runs iterations / 10, up to 4."""
