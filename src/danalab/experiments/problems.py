"""Small problems on which optimizers differ, seconds to minutes a run.

For `danalab optim compare` and `danalab judge`:

    quadratic   least squares on power-law random features: eigenvalues over decades, noisy gradients;
                x = z A, z ~ N(0, 1_v), A = diag(j^-1) W, y = z . c, c_j = j^-1.3; excess of E (x . theta - y)^2 / 2
    matrix      a matrix from ill-conditioned inputs, in a rotated basis, which no coordinate-wise step resolves;
                x ~ N(0, Q diag(j^-2) Q^T), Q a rotation, y = T x; E |(W - T) x|^2 / 2
    language    the next byte of Python's standard library, by an Enoki of width 64; nats a byte
    char        the same by a smaller one           images      a convolutional network on gratings
    nanogpt     a GPT of three layers of width 64; data:PATH is its model on a data set of one's own

Every run makes its problem from its seed, so that model, data and data order are the same for all optimizers. Text is
Python's standard library.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from danalab.errors import UserError, nearest
from danalab.optimizer_facts import OMEGA

if TYPE_CHECKING:
    from danalab.models.config import ModelConfig


@dataclass(frozen=True)
class Objective:
    """A problem with its model and its stream of data, ready for one run."""

    model: nn.Module
    loss: Callable[[], Tensor]
    """Loss of the next batch, with a graph for its gradient."""
    measure: Callable[[], float]
    """The measure that optimizers are compared by."""


@dataclass(frozen=True)
class SmallProblem:
    """A problem and the length of its runs."""

    name: str
    title: str
    unit: str
    """Unit of `measure`, for the axis."""
    steps: int
    """Optimizer steps of a run."""
    omega: float
    """Strength of the weight decay; 0 where the solution is not small."""
    log: bool
    """Whether the measure falls by orders of magnitude."""
    make: Callable[[int], Objective]
    """Seed -> task."""


class _Weight(nn.Module):
    """A parameter in a module, so that optimizers know whether it is a vector or a matrix."""

    def __init__(self, value: Tensor):
        super().__init__()
        self.weight = nn.Parameter(value)


def quadratic(seed: int, v: int = 600, d: int = 150, batch: int = 16) -> Objective:
    """Power-law random features with alpha = 1, beta = 0.3: `danalab theory` solves this problem exactly."""
    draw = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, v + 1) ** -1.0
    target = torch.arange(1, v + 1) ** -1.3
    features = scale[:, None] * torch.randn(v, d, generator=draw) / d**0.5
    best = torch.linalg.lstsq(features.double(), target.double()[:, None]).solution[:, 0]
    floor = float((features.double() @ best - target).square().sum() / 2)
    model = _Weight(torch.zeros(d))

    def loss() -> Tensor:
        z = torch.randn(batch, v, generator=draw)
        return (z @ features @ model.weight - z @ target).square().mean() / 2

    def measure() -> float:
        with torch.no_grad():
            missed = features.double() @ model.weight.double() - target
            return float(missed.square().sum() / 2) - floor

    return Objective(model, loss, measure)


def matrix(seed: int, size: int = 96, batch: int = 64) -> Objective:
    """A dense matrix learned from inputs whose standard deviations fall like 1/j in a rotated basis."""
    draw = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=draw)).Q
    root = rotation * torch.arange(1, size + 1) ** -1.0  # x = root z
    target = torch.randn(size, size, generator=draw) / size**0.5
    model = _Weight(torch.zeros(size, size))

    def loss() -> Tensor:
        x = torch.randn(batch, size, generator=draw) @ root.T
        return (x @ (model.weight - target).T).square().sum(dim=1).mean() / 2

    def measure() -> float:
        with torch.no_grad():
            return float(((model.weight - target) @ root).square().sum() / 2)

    return Objective(model, loss, measure)


def language(seed: int, width: int = 64, layers: int = 2, length: int = 48, batch: int = 8) -> Objective:
    """A small Enoki on bytes; measured on text from other files than it was trained on."""
    from danalab.models.config import ModelConfig

    config = ModelConfig("enoki", width, layers, width // 32, 32, 4 * width, vocab_size=256, seq_len=length)
    return next_token(config, *library_bytes(), batch, seed)


def next_token(config: "ModelConfig", training: Tensor, held_out: Tensor, batch: int, seed: int) -> Objective:
    """A language model on windows of `training`, int64 [tokens]; measured on 128 fixed windows of `held_out`.

    A step takes `batch` windows; `seed` draws the initial weights and the order of the data.
    """
    from danalab.models import build_model

    model = build_model(config, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    length = config.seq_len
    offsets = torch.arange(length + 1)
    fixed = held_out[torch.linspace(0, len(held_out) - length - 1, 128).long()[:, None] + offsets]

    def cross_entropy(windows: Tensor) -> Tensor:
        logits = model(windows[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    def loss() -> Tensor:
        return cross_entropy(
            training[torch.randint(len(training) - length, (batch, 1), generator=draw) + offsets]
        )

    def measure() -> float:
        with torch.no_grad():
            return float(cross_entropy(fixed))

    return Objective(model, loss, measure)


@cache
def library_bytes() -> tuple[Tensor, Tensor]:
    """Some 2 MB of the standard library as bytes for training, and 200 kB of other files to measure on; int64."""
    from danalab.data.sources.text import StdlibSource

    training, held_out = bytearray(), bytearray()
    for number, text in enumerate(StdlibSource().iter_documents()):
        into = held_out if number % 10 == 0 else training
        into += text.encode()
        if len(training) > 2_000_000:
            break
    return _bytes(training), _bytes(held_out[:200_000])


def _bytes(text: bytearray) -> Tensor:
    return torch.frombuffer(text, dtype=torch.uint8).long()


def char(seed: int) -> Objective:
    """A small Enoki on bytes."""
    from danalab.models import ModelConfig

    config = ModelConfig("enoki", 32, 2, 1, 32, 128, vocab_size=256, seq_len=32)
    return next_token(config, *library_bytes(), 8, seed)


def nanogpt(seed: int, path: str | None = None) -> Objective:
    """A small GPT on bytes, or on the data set at `path`."""
    from danalab.models import ModelConfig

    training, held_out, vocab_size = (*library_bytes(), 256) if path is None else own_text(path)
    config = ModelConfig("gpt", 64, 3, 4, 16, 256, vocab_size=vocab_size, seq_len=128)
    return next_token(config, training, held_out, 16, seed)


@cache
def own_text(path: str) -> tuple[Tensor, Tensor, int]:
    """The first 20 million training tokens and 200,000 validation tokens of a data set, and its vocabulary's size."""
    from danalab.data import open_data

    training = open_data(path)
    parts = [(training, 20_000_000), (open_data(path, split="val"), 200_000)]
    first, held_out = (
        torch.from_numpy(part.store.read(0, min(part.n_tokens, most)).astype("int64")) for part, most in parts
    )
    return first, held_out, training.vocab_size


CLASSES, PIXELS = 8, 16


def gratings(draw: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Images [count, 1, PIXELS, PIXELS] of gratings in eight orientations in noise, and the orientations [count]."""
    labels = torch.randint(CLASSES, (count,), generator=draw)
    angle = (torch.pi * labels / CLASSES)[:, None, None]
    phase = 2 * torch.pi * torch.rand(count, 1, 1, generator=draw)
    y, x = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    wave = torch.sin(1.2 * (x * angle.cos() + y * angle.sin()) + phase)
    return (wave + 2 * torch.randn(count, PIXELS, PIXELS, generator=draw))[:, None], labels


def images(seed: int) -> Objective:
    """A small convolutional network that names the orientation; measured on the same 2,048 images in every run."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (PIXELS // 4) ** 2, 64),
        nn.GELU(),
        nn.Linear(64, CLASSES),
    )
    draw = torch.Generator().manual_seed(seed)
    fixed, orientations = gratings(torch.Generator().manual_seed(2**31), 2048)

    def loss() -> Tensor:
        batch, truth = gratings(draw, 64)
        return nn.functional.cross_entropy(model(batch), truth)

    def measure() -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(fixed), orientations))

    return Objective(model, loss, measure)


_LIBRARY, _NATS = "on bytes of Python's standard library", "loss on other files [nats/byte]"
PROBLEMS = {
    each.name: each
    for each in (
        SmallProblem(
            "quadratic",
            "Least squares on power-law random features",
            "risk above the smallest possible",
            2000,
            0.0,
            True,
            quadratic,
        ),
        SmallProblem("matrix", "A matrix from ill-conditioned inputs", "risk", 300, 0.0, True, matrix),
        SmallProblem("language", f"A small transformer {_LIBRARY}", _NATS, 300, OMEGA, False, language),
        SmallProblem("char", f"A small Enoki {_LIBRARY}", _NATS, 200, OMEGA, False, char),
        SmallProblem(
            "images", "A convolutional network on gratings", "loss [nats/image]", 150, 0.0, False, images
        ),
        SmallProblem("nanogpt", f"A GPT of width 64 {_LIBRARY}", _NATS, 600, OMEGA, False, nanogpt),
    )
}
OWN_DATA = "data:"  # prefix of nanogpt's model on a data set of one's own


def get_problem(name: str, steps: int | None = None, kind: str = "problem") -> SmallProblem:
    """The problem of that name, or of `data:PATH` (UserError: unknown); `steps`: of its runs, default its own."""
    if name.startswith(OWN_DATA):
        path = name.removeprefix(OWN_DATA)
        own_text(path)
        title, make = f"nanogpt's model on {path}", partial(nanogpt, path=path)
        found = replace(PROBLEMS["nanogpt"], name=name, title=title, unit="loss [nats/token]", make=make)
    elif name in PROBLEMS:
        found = PROBLEMS[name]
    else:
        raise UserError(f"unknown {kind} '{name}'{nearest(name, PROBLEMS)}; known: {', '.join(PROBLEMS)}")
    return replace(found, steps=steps or found.steps)
