"""Settings of checkpoints."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge

from danalab.errors import UserError
from danalab.train.config.fields import Natural, Section, setting

_KEPT_STEP = re.compile(r"([1-9]\d{0,17})(?:=(?!step-|superseded-)([A-Za-z0-9][A-Za-z0-9._-]*))?")


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Section):
    """When checkpoints are written, and which are kept."""

    title: ClassVar[str] = "checkpoints"

    ckpt_interval: Natural = setting(500, kind="execution", aliases=("latest-ckpt-interval",))
    """Steps between checkpoints; 0: only at the end and when stopped."""
    keep_last: Annotated[int, Ge(2)] = setting(2, kind="execution")
    """Newest checkpoints that are kept; at least 2, because one may be damaged when it is needed."""
    keep_every: Natural = setting(0, kind="execution", aliases=("permanent-ckpt-interval",))
    """Also keep each checkpoint whose step is a multiple of this; 0: none."""
    keep_steps: tuple[str, ...] = setting((), kind="execution")
    """Write and keep checkpoints at these steps, optionally with a name: 1000 5000=before-decay."""
    local_ckpt_dir: Path | None = setting(None, kind="execution")
    """Folder on this machine's disk where checkpoints are written before they are moved; default $SLURM_TMPDIR."""
    async_checkpoint: bool = setting(True, kind="execution")
    """Write checkpoints while training continues, from a copy in host memory."""

    def check(self) -> None:
        """Refuse steps that cannot be read."""
        super().check()
        self.kept_steps()

    def kept_steps(self) -> dict[int, str | None]:
        """`keep_steps` as step -> name."""
        found: dict[int, str | None] = {}
        for word in ",".join(self.keep_steps).split(","):
            match = _KEPT_STEP.fullmatch(word)
            if word and match is None:
                raise UserError(f"--keep-steps {word}: STEP or STEP=NAME is expected, as in 5000 or 5000=before-decay")
            if match:
                if match[2] and match[2] in found.values():
                    raise UserError(f"--keep-steps {word}: another step has the name '{match[2]}' already")
                found[int(match[1])] = match[2]
        return found
