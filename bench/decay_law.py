"""How strong should weight decay be in a short run? omega and the learning rate together, against AdamW tuned alike.

python bench/decay_law.py [--horizons 30 100 300 1000] [--seeds 0] [--output bench/results/decay_law_cpu.json]

Three small problems on one thread: a character transformer and a character MLP on the text of docs/, and a classifier
of a teacher's labels. Schedule: linear warm-up over a tenth of the run (at most 100 steps), cosine to a tenth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.optim import build_optimizer

ROOT = Path(__file__).parents[1]
RATES = (1e-3, 3e-3, 1e-2)
OMEGAS = (0.0, 0.25, 1.0, 4.0)
DECAYS = (0.0, 0.1, 1.0)
"""Of AdamW, times its learning rate."""

Batch = Callable[[torch.Generator], tuple[Tensor, Tensor]]


class Block(nn.Module):
    """A pre-norm transformer block of width 48."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (3, 16)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharTransformer(nn.Module):
    """Two blocks on 32 characters."""

    def __init__(self, vocab: int, width: int = 48):
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width), Block(width), nn.LayerNorm(width))
        self.head = nn.Linear(width, vocab, bias=False)
        for embedding in (self.embed, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens) + self.positions.weight)).flatten(0, 1)


class CharMLP(nn.Sequential):
    """Bengio's: the embeddings of 8 characters, one hidden layer."""

    def __init__(self, vocab: int):
        super().__init__(
            nn.Embedding(vocab, 16), nn.Flatten(1), nn.Linear(128, 96), nn.Tanh(), nn.Linear(96, vocab, bias=False)
        )


def problems() -> dict[str, tuple[Callable[[], nn.Module], Batch, Batch]]:
    """Name -> model, training batches, validation batches."""
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    letters = sorted(set(text))
    place = {letter: i for i, letter in enumerate(letters)}
    data = torch.tensor([place[letter] for letter in text])
    cut = len(data) * 9 // 10

    def windows(part: Tensor, length: int, count: int) -> Batch:
        def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            starts = torch.randint(len(part) - length - 1, (count,), generator=generator)
            rows = torch.stack([part[start : start + length + 1] for start in starts.tolist()])
            return rows[:, :-1], rows[:, 1:]

        return draw

    def sequences(part: Tensor, count: int) -> Batch:
        draw = windows(part, 32, count)
        return lambda generator: (lambda x, y: (x, y.flatten()))(*draw(generator))

    def contexts(part: Tensor, count: int) -> Batch:
        draw = windows(part, 8, count)
        return lambda generator: (lambda x, y: (x, y[:, -1]))(*draw(generator))

    teacher = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(7)
        for p in teacher.parameters():
            p.normal_(std=3 / p.shape[-1] ** 0.5)

    def labelled(count: int) -> Batch:
        def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
            x = torch.randn(count, 20, generator=generator)
            with torch.no_grad():
                return x, teacher(x).div(2).softmax(-1).multinomial(1, generator=generator)[:, 0]

        return draw

    def classifier() -> nn.Module:
        return nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))

    train, val = data[:cut], data[cut:]
    return {
        "transformer": (lambda: CharTransformer(len(letters)), sequences(train, 16), sequences(val, 128)),
        "mlp": (lambda: CharMLP(len(letters)), contexts(train, 64), contexts(val, 4096)),
        "teacher": (classifier, labelled(64), labelled(8192)),
    }


def run(name: str, steps: int, seed: int, opt: str, lr: float, **settings: float) -> float:
    """Validation loss after `steps` steps."""
    make, train, val = PROBLEMS[name]
    torch.manual_seed(seed)
    model = make()
    optimizer = build_optimizer(opt, model, lr=lr, **settings)
    warmup = min(max(steps // 10, 1), 100)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        x = (step - warmup) / max(steps - warmup, 1)
        factor = (step + 1) / warmup if step < warmup else 0.55 + 0.45 * math.cos(math.pi * x)
        for group in optimizer.param_groups:
            group["lr"] = lr * factor
        inputs, targets = train(generator)
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    with torch.no_grad():
        inputs, targets = val(torch.Generator().manual_seed(12345))
        return F.cross_entropy(model(inputs), targets).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizons", type=int, nargs="+", default=[30, 100, 300, 1000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--problems", nargs="+", default=["transformer", "mlp", "teacher"])
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "decay_law_cpu.json")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    PROBLEMS = problems()
    rows = json.loads(flags.output.read_text()) if flags.output.exists() else []
    for steps, seed, name in itertools.product(flags.horizons, flags.seeds, flags.problems):
        key = {"problem": name, "steps": steps, "seed": seed}
        for lr, omega in itertools.product(RATES, OMEGAS):
            decay = {"weight_decay": min(omega / (steps / 10), 0.25), "wd_ts": steps / 10}  # above, it warns
            loss = run(name, steps, seed, "adana", lr, **decay)
            rows.append({**key, "opt": "adana", "lr": lr, "omega": omega, "loss": loss})
        for lr in RATES:
            loss = run(name, steps, seed, "adana", lr, omega=4.0, horizon=steps)
            rows.append({**key, "opt": "adana", "lr": lr, "omega": "4, bounded", "loss": loss})
        for lr, decay in itertools.product(RATES, DECAYS):
            loss = run(name, steps, seed, "adamw", lr, weight_decay=decay)
            rows.append({**key, "opt": "adamw", "lr": lr, "weight_decay": decay, "loss": loss})
        for opt in ("adana", "adamw"):
            own = [row for row in rows if key.items() <= row.items() and row["opt"] == opt]
            print(min(own, key=lambda row: row["loss"]), flush=True)
        flags.output.write_text(json.dumps(rows))
