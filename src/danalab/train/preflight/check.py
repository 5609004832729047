"""All checks of a run in order, each with a verdict as soon as it is known."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from danalab.errors import LostRankError, UserError, first_line
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.environment import find_place
from danalab.train.parallel.layout import data_parallel_ranks
from danalab.train.preflight import trial as first_steps
from danalab.train.preflight.data import check_data
from danalab.train.preflight.overfit import check_overfit
from danalab.train.preflight.verdict import Verdict
from danalab.train.stage import stage_kind
from danalab.train.step.finite_guard import NonFiniteError
from danalab.train.system.device import device_type


def check_run(config: TrainConfig, *, steps: int, overfit_steps: int) -> Iterator[Verdict]:
    """Check a run before it is launched; nothing of it is written but a temporary folder beside the run folder.

    Args:
        steps: first steps to train, at least 2; each is trained twice.
        overfit_steps: steps on one sequence.
    Raises:
        UserError: bad settings, or started by torchrun or srun.
    """
    if find_place(os.environ) is not None:
        raise UserError("danalab check: start it without torchrun or srun; --nproc N starts the ranks")
    dataset = stage_kind(config).open_data(config)
    spec = resolve(config, dataset, data_parallel_ranks(config, {}), device_type(config.device))
    if spec.iterations <= steps:
        raise UserError(f"--check-steps {steps}: the run has {spec.iterations} steps; at least one must be left")
    yield from _attempt("data", lambda: [check_data(spec, dataset)])
    parent = _existing(spec.run_dir.parent)
    with tempfile.TemporaryDirectory(prefix=".danalab-check-", dir=parent) as name:
        folder = Path(name)

        def try_first_steps() -> list[Verdict]:
            trial = first_steps.make_trial(spec, config, folder, steps)
            checks = (
                first_steps.check_first_loss,
                first_steps.check_memory,
                first_steps.check_resume,
                first_steps.check_time,
            )
            return [check(spec, trial) for check in checks]

        yield from _attempt("training", try_first_steps)
        yield from _attempt(
            "overfit", lambda: [check_overfit(spec, config, dataset, folder / "overfit", overfit_steps)]
        )


def _attempt(name: str, check: Callable[[], list[Verdict]]) -> list[Verdict]:
    """The verdicts of a check; where it cannot be carried out, that is the verdict."""
    try:
        return check()
    except (UserError, LostRankError, NonFiniteError) as error:
        return [Verdict(name, "failed", first_line(error))]


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists: a disk is checked without leaving a trace."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.is_dir())
