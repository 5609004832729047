"""Tracks: fixed problems on which two optimizers are judged, each a few CPU seconds to minutes a run.

    char        a small Enoki on bytes                      synthetic   a language whose entropy is known exactly
    stdlib      the language problem of `optim compare`     images      a convolutional network on shapes made here
    nanogpt     three layers of width 64, a tied head, 16 x 128 bytes, 600 steps: what everybody tries first

`data:PATH` is nanogpt's model on a data set of one's own. A run makes everything from its seed, so that two optimizers
with one seed have the same weights, data and order. Text is Python's standard library.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn

from danalab.errors import UserError, nearest
from danalab.showcase.problems import Objective, SmallProblem, get_problem, library_bytes, next_token

OWN_DATA = "data:"  # prefix of the track on a data set of one's own


def _char(seed: int) -> Objective:
    from danalab.models import ModelConfig

    return next_token(ModelConfig("enoki", 32, 2, 1, 32, 128, vocab_size=256, seq_len=32), *library_bytes(), 8, seed)


def _nanogpt(vocab_size: int, text: Callable[[], tuple[Tensor, Tensor]], seed: int) -> Objective:
    from danalab.models import ModelConfig

    config = ModelConfig("gpt", 64, 3, 4, 16, 256, vocab_size=vocab_size, seq_len=128)
    return next_token(config, *text(), 16, seed)


@cache
def _sentences() -> tuple[Tensor, Tensor]:
    """Documents of the synthetic language one after another, each with its end (the last id)."""
    from danalab.data.sources.synthetic import Language

    language = Language(words=34, answers=16, distances=1, questions=0.4, document_tokens=64)
    end = len(language.vocabulary)

    def part(first: int, count: int) -> Tensor:
        documents = torch.from_numpy(language.documents(first, count))
        return torch.cat([documents, torch.full((count, 1), end)], dim=1).flatten()

    return part(0, 8192), part(10**6, 512)


def _synthetic(seed: int) -> Objective:
    from danalab.models import ModelConfig

    training, held_out = _sentences()
    config = ModelConfig("enoki", 24, 1, 1, 24, 96, vocab_size=int(training.max()) + 1, seq_len=64)
    return next_token(config, training, held_out, 8, seed)


CLASSES, PIXELS = 8, 16


def _shapes(draw: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Images [count, 1, PIXELS, PIXELS] of gratings in eight orientations in noise, and the orientations [count]."""
    labels = torch.randint(CLASSES, (count,), generator=draw)
    angle = (torch.pi * labels / CLASSES)[:, None, None]
    phase = 2 * torch.pi * torch.rand(count, 1, 1, generator=draw)
    y, x = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    wave = torch.sin(1.2 * (x * angle.cos() + y * angle.sin()) + phase)
    return (wave + 2 * torch.randn(count, PIXELS, PIXELS, generator=draw))[:, None], labels


def _images(seed: int) -> Objective:
    """A small convolutional network that names the orientation; measured on the same 2,048 images in every run."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.GELU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (PIXELS // 4) ** 2, 64), nn.GELU(), nn.Linear(64, CLASSES),
    )  # fmt: skip
    draw = torch.Generator().manual_seed(seed)
    images, labels = _shapes(torch.Generator().manual_seed(2**31), 2048)

    def loss() -> Tensor:
        batch, truth = _shapes(draw, 64)
        return nn.functional.cross_entropy(model(batch), truth)

    def measure() -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(images), labels))

    return Objective(model, loss, measure)


_language, _gpt = get_problem("language").make, partial(_nanogpt, 256, library_bytes)
_TRACKS: dict[str, tuple[Callable[[int], Objective], str, str, int]] = {
    "char": (_char, "A small Enoki on bytes of Python's standard library", "nats/byte", 200),
    "synthetic": (_synthetic, "A small Enoki on a language of known entropy", "nats/token", 300),
    "stdlib": (_language, "Enoki of width 64 on bytes of Python's standard library", "nats/byte", 300),
    "images": (_images, "A convolutional network on gratings in noise", "nats/image", 150),
    "nanogpt": (_gpt, "A GPT of three layers of width 64 on bytes of Python's standard library", "nats/byte", 600),
}
"""Name -> (seed -> task, title, unit of the loss, steps of a run)."""
TRACKS = tuple(_TRACKS)


def get_track(name: str, steps: int | None = None) -> SmallProblem:
    """The problem of that name, or of `data:PATH` (UserError: unknown); `steps`: of its runs, default the track's."""
    if name.startswith(OWN_DATA):
        _own_text(name.removeprefix(OWN_DATA))
        make, title, unit = partial(_own_task, name), f"nanogpt's model on {name.removeprefix(OWN_DATA)}", "nats/token"
        usual = _TRACKS["nanogpt"][-1]
    elif name in _TRACKS:
        make, title, unit, usual = _TRACKS[name]
    else:
        raise UserError(f"--track {name}{nearest(name, TRACKS)}: known are {', '.join(TRACKS)}; or give --data PATH")
    omega = 0.0 if name == "images" else 4.0
    return SmallProblem(name, title, f"loss [{unit}]", steps or usual, omega=omega, log=False, make=make)


def _own_task(name: str, seed: int) -> Objective:
    text, vocab_size = _own_text(name.removeprefix(OWN_DATA))
    return _nanogpt(vocab_size, lambda: text, seed)


@cache
def _own_text(path: str) -> tuple[tuple[Tensor, Tensor], int]:
    """The first 20 million training tokens and 200,000 validation tokens of a data set, and its vocabulary's size."""
    from danalab.data import open_data

    training = open_data(path)
    parts = [(training, 20_000_000), (open_data(path, split="val"), 200_000)]
    first, held_out = (torch.from_numpy(part.store.read(0, min(part.n_tokens, most)).astype("int64"))
                       for part, most in parts)  # fmt: skip
    return (first, held_out), training.vocab_size
