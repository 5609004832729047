"""The interface between the trainer and an optimizer, with the curvature that some optimizers need.

What an optimizer needs is declared by its registry entry. Curvature is the gradient of labels that are sampled from
the model (Gauss-Newton-Bartlett):

    y_i ~ softmax(logits_i)          labels of one micro-batch, a function of seed, step and rank
    s   = gradient of the mean cross-entropy of y          n s^2 estimates the Gauss-Newton matrix's diagonal
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from danalab.optim import build_optimizer, settings_of
from danalab.train.config.train_config import TrainConfig
from danalab.train.step.gradients import GradientStep
from danalab.train.step.loss import IGNORED, TrainingBatch


class OptimizerDriver:
    """Wraps an optimizer for the training loop."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str = ""):
        """`name`: in `danalab.optim.OPTIMIZERS`, or an address."""
        self.optimizer: Any = optimizer
        self.name = name
        self.switches = callable(getattr(optimizer, "train", None)) and callable(
            getattr(optimizer, "eval", None)
        )
        """Whether it evaluates at other weights than it trains."""
        for group in optimizer.param_groups:
            # In the group, so that checkpoints have it; the schedule multiplies it.
            group.setdefault("peak_lr", float(group["lr"]))
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]

    @classmethod
    def build(
        cls,
        resolved: TrainConfig,
        model: nn.Module,
        make: Callable[..., torch.optim.Optimizer] = build_optimizer,
    ) -> "OptimizerDriver":
        """The run's optimizer for `model` on its device, by a strategy's own `make`; UserError: it cannot run here."""
        name = resolved.opt
        optimizer = make(name, model, lr=resolved.lr, **resolved.settings_of_optimizer(settings_of(name)))
        for group in optimizer.param_groups:
            if group.get("decay_bound") is not None:
                group["decay_bound"] = resolved.decay_bound
        return cls(optimizer, name)

    def set_rate(self, factor: float) -> None:
        """Set the learning rate of the next step to `factor` x peak."""
        for group in self.optimizer.param_groups:
            lr = group["peak_lr"] * factor
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def train(self) -> None:
        """Switch to the weights that are trained; before the first step and after a checkpoint was loaded."""
        if self.switches:
            self.optimizer.train()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to the weights that are evaluated and saved (schedule-free has others); they come back bit for bit."""
        if self.switches:
            self.optimizer.eval()
        try:
            yield
        finally:
            self.train()

    def scalars(self) -> dict[str, float]:
        """`optim/*`: coefficients of the last step, means over the state (a pass over it)."""
        values: dict[str, Any] = {}
        for name in ("coefficients", "collect_stats"):
            ask = getattr(self.optimizer, name, None)
            if callable(ask):
                answer: Any = ask()
                values.update(answer)
        values.pop("lr", None)
        return {f"optim/{name}": float(value) for name, value in values.items()}


LOGITS_AT_ONCE = 2**28
"""Logits in memory at a time: 1 GiB in float32."""


class CurvatureEstimator:
    """Gives the optimizer an estimate before the steps that need one; seed, step and rank decide the labels."""

    def __init__(self, gradients: GradientStep, driver: OptimizerDriver, *, seed: int, vocab_size: int):
        self._gradients, self._driver, self._seed = gradients, driver, seed
        self._rows = LOGITS_AT_ONCE // vocab_size

    def before_step(self, step: int, batch: TrainingBatch) -> None:
        """Estimate, where one is due after `step` steps, at the current weights. Collective.

        The gradients are empty before and after. `batch` is this rank's part of the next step's; positions without a
        target draw no label.
        """
        optimizer = self._driver.optimizer
        if not hasattr(optimizer, "update_hessian") or not optimizer.hessian_is_due():
            return
        part = batch.rows(slice(0, self._gradients.micro_batch))
        labels = self._draw(step, part.inputs, part.targets)
        optimizer.update_hessian(self._gradients.of_labels(TrainingBatch(part.inputs, labels)))
        optimizer.zero_grad()

    @torch.no_grad()
    def _draw(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Labels [sequences, length] from the model's own distribution; -1 where there is no target."""
        generator = torch.Generator(self._gradients.device)
        # Ranks of one tensor-parallel group have the same data and must draw the same labels.
        rank = self._gradients.strategy.world.dp_rank
        generator.manual_seed(((self._seed * 1_000_003 + step) * 65_537 + rank) % 2**64)
        sequences = max(1, self._rows // inputs.shape[1])
        labels = []
        with self._gradients.strategy.evaluating():
            for start in range(0, inputs.shape[0], sequences):
                with self._gradients.autocast():
                    logits = self._gradients.model(
                        inputs[start : start + sequences].to(self._gradients.device)
                    )
                odds = torch.softmax(logits.float(), dim=-1).flatten(0, 1)
                # A diverged model has no distribution; its step is skipped, so any label will do.
                odds = torch.nan_to_num(odds, nan=1.0)
                labels.append(torch.multinomial(odds, 1, generator=generator).view(logits.shape[:-1]))
        return torch.where(targets.to(self._gradients.device) == IGNORED, IGNORED, torch.cat(labels))
