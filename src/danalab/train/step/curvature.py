"""Curvature for optimizers that use it: the gradient of labels sampled from the model (Gauss-Newton-Bartlett).

y_i ~ softmax(logits_i)          labels of one micro-batch, a function of seed, step and rank
s   = gradient of the mean cross-entropy of y          n s^2 estimates the Gauss-Newton matrix's diagonal
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.step.batch import IGNORED, Batch
from danalab.train.step.gradients import GradientStep
from danalab.train.step.optimizer_driver import OptimizerDriver

LOGITS_AT_ONCE = 2**28
"""Logits in memory at a time: 1 GiB in float32."""


class Curvature:
    """Gives the optimizer an estimate before the steps that need one."""

    def __init__(
        self,
        model: nn.Module,
        gradients: GradientStep,
        driver: OptimizerDriver,
        *,
        seed: int,
        vocab_size: int,
        autocast: Callable[[], Any],
        strategy: ParallelStrategy,
        device: torch.device,
    ):
        """Args:
        seed: with the step and the rank, seeds the labels.
        vocab_size: width of the logits.
        """
        self._model, self._gradients, self._driver = model, gradients, driver
        self._seed = seed
        self._rows = LOGITS_AT_ONCE // vocab_size
        self._autocast, self._strategy, self._device = autocast, strategy, device

    def before_step(self, step: int, batch: Batch) -> None:
        """Estimate, where one is due, at the current weights; the gradients are empty before and after. Collective.

        Args:
            step: steps made so far.
            batch: this rank's part of the next step's batch; positions without a target draw no label.
        """
        if not self._driver.curvature_is_due():
            return
        part = batch.rows(slice(0, self._gradients.micro_batch))
        labels = self._draw(step, part.inputs, part.targets)
        self._driver.take_curvature(self._gradients.of_labels(Batch(part.inputs, labels)))

    @torch.no_grad()
    def _draw(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Labels [sequences, length] from the model's own distribution; -1 where there is no target."""
        generator = torch.Generator(self._device)
        # Ranks of one tensor-parallel group have the same data and must draw the same labels.
        generator.manual_seed(((self._seed * 1_000_003 + step) * 65_537 + self._strategy.world.dp_rank) % 2**64)
        sequences = max(1, self._rows // inputs.shape[1])
        labels = []
        with self._strategy.evaluating():
            for start in range(0, inputs.shape[0], sequences):
                with self._autocast():
                    logits = self._model(inputs[start : start + sequences].to(self._device))
                odds = torch.softmax(logits.float(), dim=-1).flatten(0, 1)
                # A diverged model has no distribution; its step is skipped, so any label will do.
                odds = torch.nan_to_num(odds, nan=1.0)
                labels.append(torch.multinomial(odds, 1, generator=generator).view(logits.shape[:-1]))
        return torch.where(targets.to(self._device) == IGNORED, IGNORED, torch.cat(labels))
