"""Callbacks that a run can have: TensorBoard, Weights & Biases, dynamics, statistics of tau, profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danalab.optim import optimizer_spec
from danalab.train.callbacks.base import Callback

if TYPE_CHECKING:
    import torch
    from torch import nn

    from danalab.train.config.run_spec import RunSpec
    from danalab.train.parallel.strategy import ParallelStrategy
    from danalab.train.run.folder import RunFolder


def make_callbacks(
    resolved: RunSpec,
    folder: RunFolder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    strategy: ParallelStrategy,
) -> list[Callback]:
    """The callbacks that the configuration asks for, on this rank.

    Raises:
        UserError: an extra is missing, or the optimizer keeps no tau.
    """
    config, world = resolved.config, strategy.world
    found: list[Callback] = []
    if config.log_dynamics:
        from danalab.train.callbacks.dynamics import Dynamics

        found.append(Dynamics(folder.path / "dynamics.jsonl", model.named_parameters(), strategy, writes=world.is_main))
        if optimizer_spec(config.opt).log_time:
            from danalab.train.callbacks.snr import FILE, SignalToNoise

            named = model.named_parameters()
            signal = SignalToNoise(folder.path / FILE, named, optimizer, strategy, writes=world.is_main)
            found += [signal] if signal.is_measurable else []
    if config.collect_tau_stats:
        from danalab.train.callbacks.tau import TauStatistics

        found.append(
            TauStatistics(
                folder.path / "tau",
                model.named_parameters(),
                optimizer,
                strategy,
                eval_interval=config.eval_interval,
                last_step=resolved.iterations,
                writes=world.is_main,
            )
        )
    if config.profile:
        from danalab.train.callbacks.profiler import ProfilerTrace

        found.append(ProfilerTrace(folder.path / "profile", world.rank))
    if config.tensorboard and world.is_main:
        from danalab.train.callbacks.tensorboard import TensorBoardMirror

        found.append(TensorBoardMirror(folder.path / "tensorboard"))
    if config.wandb and world.is_main:
        from danalab.train.callbacks.wandb import WandbMirror

        found.append(
            WandbMirror(
                folder.path,
                config.as_dict(),
                project=config.wandb_project,
                entity=config.wandb_entity,
                group=config.wandb_group,
                mode=config.wandb_mode,
            )
        )
    return found
