"""Configuration and construction of a DiLoCo worker."""

from dataclasses import replace

from danalab.errors import UserError
from danalab.train.config.run_spec import RunSpec
from danalab.train.parallel.diloco.exchange import Exchange
from danalab.train.parallel.diloco.outer import OuterStep
from danalab.train.parallel.diloco.worker import Worker
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.system.signals import StopRequest


def as_worker(resolved: RunSpec, world: World) -> RunSpec:
    """The configuration of one worker.

    Worker 0 owns the run folder and its metrics. A later worker without a checkpoint of its own starts from worker 0's,
    if there is one.
    """
    named = resolved.job.resume_from
    if named is not None and (resolved.run_dir / "checkpoints").resolve() in named.resolve().parents:
        raise UserError(
            f"--resume-from {named}: the workers of a DiLoCo run cannot go back together; take another --run-dir"
        )
    if world.worker == 0:
        return resolved
    config = replace(resolved.config, wandb=False, tensorboard=False)
    if named is None and RunFolder(resolved.run_dir).store.steps():
        config = replace(config, resume_from=resolved.run_dir)
    return replace(resolved, config=config)


def worker_of(resolved: RunSpec, folder: RunFolder, world: World, stop: StopRequest) -> Worker:
    """The worker of this process."""
    settings = resolved.parallel
    assert settings.diloco_steps is not None
    assert settings.diloco_lr is not None
    assert settings.diloco_momentum is not None
    assert settings.diloco_patience is not None
    return Worker(
        world,
        Exchange(resolved.run_dir / "diloco", world.worker, world.dp_size, settings.diloco_patience),
        OuterStep(settings.diloco_lr, settings.diloco_momentum),
        period=settings.diloco_steps,
        iterations=resolved.iterations,
        store=folder.store,
        should_stop=lambda: bool(stop),
    )
