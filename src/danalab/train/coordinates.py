"""The coordinate check: do activations keep their size as the width grows, in each of the first steps of training?

    a(width, step) = mean |x| over what a block puts out, and over (W - W_0) h, logits by what the head W has learned
    flat: largest a <= 2 x smallest a over the widths, in every step

All widths train on the same batch at the same peak rate, with heads of the same size. The head's initial weights W_0
are left out since their part of the logits falls as 1 / sqrt(width) in mup, which is meant.
Source: Yang et al. 2022, arXiv 2203.03466, appendix D.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.errors import UserError
from danalab.models import Decoder, build_model
from danalab.optim import optimizer_spec
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import TrainConfig
from danalab.train.stage import stage_kind
from danalab.train.step.optimizer_driver import OptimizerDriver
from danalab.train.system.device import choose_device

FLAT = 2.0
"""Largest ratio of the sizes at two widths."""
STEPS, ROWS = 10, 8


@dataclass(frozen=True)
class Coordinates:
    """Sizes of activations of models that differ in width."""

    widths: tuple[int, ...]
    lr: float
    sizes: dict[str, list[list[float]]]
    """"block 1", ..., "logits" -> for each step, the size at each width."""

    def ratios(self) -> dict[str, float]:
        """Largest ratio between two widths, over all steps."""
        return {name: max(max(row) / max(min(row), 1e-30) for row in rows) for name, rows in self.sizes.items()}

    @property
    def is_flat(self) -> bool:
        return all(ratio <= FLAT for ratio in self.ratios().values())


def check_coordinates(config: TrainConfig, widths: Sequence[int], steps: int = STEPS) -> Coordinates:
    """Train models of `config` that differ in width for a few steps on the run's first batch; nothing is written.

    The rate is --lr, or the automatic one of the narrowest, which is the base of mup and completep (default of
    --base-d-model here); the size of a head is --head-dim, or half the narrowest width. UserError: a width that is no
    multiple of the size of a head, or an optimizer whose steps are not like Adam's.
    """
    if not optimizer_spec(config.opt).adam_like:
        raise UserError(f"--coordinates: {config.opt} does not take steps like Adam's, which the check is for")
    widths = tuple(sorted(set(widths)))
    head_dim = config.head_dim or max(2, widths[0] // 4 * 2) if widths else 0
    if len(widths) < 2 or any(width < 1 or width % head_dim for width in widths):
        raise UserError(f"--widths {widths}: give two or more, multiples of the size of a head, {head_dim}")
    dataset = stage_kind(config).open_data(config)
    layers, device = resolve(config, dataset).model.n_layers, choose_device(config.device)
    lr, sizes = config.lr, {}
    base = None if config.parametrization == "standard" else config.base_d_model or widths[0]
    for width in widths:
        settings = replace(
            config, heads=None, size=None, d_model=width, n_layers=layers, n_heads=width // head_dim,
            head_dim=head_dim, mlp_dim=None, n_kv_heads=None, lr=lr, base_d_model=base, warmup_steps=None,
        )  # fmt: skip
        spec = resolve(settings, dataset, device_type=device.type)
        lr = spec.plan.lr
        inputs, targets = (torch.as_tensor(ids, device=device) for ids in dataset.sequential(spec.plan.seq_len)[:ROWS])
        model = build_model(spec.model, init=spec.config.init, seed=config.seed, device=device)
        driver = OptimizerDriver.build(spec, model)
        for step, row in enumerate(_sizes(model, driver, inputs.long(), targets.long(), steps)):
            for name, value in row.items():
                sizes.setdefault(name, [[] for _ in range(steps)])[step].append(value)
    return Coordinates(widths, lr or 0.0, sizes)


def _sizes(
    model: Decoder, driver: OptimizerDriver, inputs: Tensor, targets: Tensor, steps: int
) -> Iterator[dict[str, float]]:
    """Sizes of the activations after each of the first steps on one batch."""
    row: dict[str, float] = {}
    for number, block in enumerate(model.blocks, 1):
        block.register_forward_hook(lambda _, __, output, *, name=f"block {number}": row.update({name: _mean(output)}))
    driver.train()
    initial = model.head_weight.detach().clone()
    for step in range(steps + 1):
        hidden = model.hidden(inputs)
        if step:
            yield {**row, "logits": _mean(hidden @ (model.head_weight - initial).T)}
        logits = hidden @ model.head_weight.T
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        driver.step(torch.ones((), dtype=torch.bool))
        driver.zero_grad()


def _mean(x: Tensor) -> float:
    return float(x.detach().float().abs().mean())
