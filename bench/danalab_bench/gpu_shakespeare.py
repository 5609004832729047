"""ADana and AdamW on characters, in the setting of nanoGPT's `config/train_shakespeare_char.py`, within some minutes.

6 blocks of width 384 with 6 heads, 256 characters, 64 sequences a step, dropout 0.2, 5,000 steps of which 100 warm up,
learning rate 1e-3 to 1e-4 by a cosine, beta2 0.99, weight decay 0.1: 10.65 million parameters. Its author reports a
best validation loss of 1.4697 nats per character. Here the whole last tenth of the text validates, in windows of 256.

A trial of `TRIAL` steps tells the time of a step; the runs have all 5,000 where the first two fit, else fewer, alike.
Runs are in the order of their worth, each is kept as soon as it ends, and one that does not fit is dropped and named.

    python -m danalab_bench.gpu_shakespeare TEXT FOLDER [--seconds 280] [--dry-run]
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.data.preparation.pipeline import prepare
from danalab.errors import UserError
from danalab.files import write_json
from danalab.train import TrainConfig, train
from danalab.train.run.metrics import read_rows
from danalab.train.system.device import machine
from danalab_bench.gpu_pretend import pretend_gpu

STEPS, TRIAL = 5000, 150
PUBLISHED = {"loss": 1.4697, "source": "nanoGPT's README, best validation loss on one A100"}
MODEL: dict[str, Any] = {"arch": "gpt", "init": "karpathy-gpt2", "d_model": 384, "n_layers": 6, "n_heads": 6,
                         "seq_len": 256, "batch_size": 64, "dropout": 0.2}  # fmt: skip
DRY: dict[str, Any] = {"d_model": 32, "n_layers": 1, "n_heads": 2, "seq_len": 32, "batch_size": 4}
ADAMW = {"opt": "adamw", "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}


@dataclass(frozen=True)
class Job:
    """A run: an optimizer with its peak learning rate, and a seed."""

    opt: str
    lr: float
    seed: int

    def settings(self) -> dict[str, Any]:
        """AdamW's are nanoGPT's; ADana's decay and momentum are its own."""
        return {**(ADAMW if self.opt == "adamw" else {"opt": self.opt}), "lr": self.lr, "seed": self.seed}


JOBS = (
    *(Job(opt, 1e-3, 0) for opt in ("adamw", "adana")),
    *(Job("adana", lr, 0) for lr in (5e-4, 2e-3)),
    *(Job(opt, 1e-3, seed) for seed in (1, 2) for opt in ("adamw", "adana")),
)


def split(text: Path, folder: Path) -> Path:
    """A data set of characters whose last tenth validates, as nanoGPT's."""
    content = text.read_text(encoding="utf-8")
    cut = int(0.9 * len(content))
    files = {}
    for name, part in (("train", content[:cut]), ("val", content[cut:])):
        files[name] = folder / f"{name}.txt"
        files[name].write_text(part, encoding="utf-8")
    out = folder / "characters"
    return prepare(
        "text", "characters", out, inputs=[files["train"]], val_inputs=[files["val"]], workers=1, progress=False
    )


def run(job: Job, steps: int, data: Path, folder: Path, dry: bool) -> dict[str, Any]:
    """Train; the curves of training and validation."""
    start = time.monotonic()
    config = TrainConfig(
        **MODEL | (DRY if dry else {}), **job.settings(), data=str(data), device="cuda", iterations=steps,
        warmup_steps=min(100, max(1, steps // 10)), grad_clip=1.0, eval_interval=max(1, min(250, steps // 4)),
        eval_batches=1 if dry else 0, log_interval=max(1, min(50, steps // 4)), ckpt_interval=0, run_dir=folder,
    )  # fmt: skip
    rows = read_rows(train(config) / "metrics.jsonl")
    curves = {
        name: [[row["step"], row[f"{name}/loss"]] for row in rows if f"{name}/loss" in row] for name in ("train", "val")
    }
    losses = [loss for _, loss in curves["val"]]
    return {
        **vars(job), "steps": steps, "seconds": time.monotonic() - start, "best": min(losses), "last": losses[-1],
        "curves": curves,
    }  # fmt: skip


def measure(text: Path, folder: Path, seconds: float, dry: bool) -> dict[str, Any]:
    """Run the jobs that fit; the result is kept in `folder`/shakespeare.json after each."""
    end = time.monotonic() + seconds
    file = folder / ("shakespeare_dry_run.json" if dry else "shakespeare.json")
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"benchmark": "shakespeare", "dry_run": dry, "machine": machine("cuda"),
                              "published": PUBLISHED, "runs": [], "dropped": []}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="danalab-bench-") as scratch:
        data = split(text, Path(scratch))
        trial = 3 if dry else TRIAL
        first, second = (run(JOBS[0], n, data, Path(scratch) / f"trial {n}", dry) for n in (trial, 2 * trial))
        step = max(1e-6, (second["seconds"] - first["seconds"]) / trial)
        fixed = max(0.0, first["seconds"] - trial * step)  # start and compilation
        steps = 3 if dry else int(min(STEPS, (end - time.monotonic() - 2 * fixed - 5) / 2 / step))
        result["trial"] = {"seconds_per_step": step, "seconds_before": fixed}
        for number, job in enumerate(JOBS[:2] if dry else JOBS):
            expected = max([row["seconds"] for row in result["runs"]] or [fixed + steps * step])
            if steps < 1 or (number > 1 and time.monotonic() + expected > end):
                result["dropped"].append(str(job))
                continue
            row = run(job, steps, data, Path(scratch) / f"run {number}", dry)
            result["runs"].append(row)
            write_json(file, result)
            print(line(row), flush=True)
    write_json(file, result)
    for name in result["dropped"]:
        print(f"dropped, no time was left: {name}")
    return result


def line(row: dict[str, Any]) -> str:
    """A run for people."""
    return (
        f"{row['opt']:<6} lr {row['lr']:g}, seed {row['seed']}: best {row['best']:.4f}, last {row['last']:.4f}"
        f" nats/character, {row['steps']} steps in {row['seconds']:.0f} s"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh shakespeare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("text", type=Path, help="the text, e.g. tinyshakespeare.txt")
    parser.add_argument("folder", type=Path, help="where the result is written")
    parser.add_argument("--seconds", type=float, default=280.0, help="time of all runs; default 280")
    parser.add_argument("--dry-run", action="store_true", help="three steps of a tiny model, on a CPU")
    flags = parser.parse_args(arguments)
    with _device(flags.dry_run) as error:
        if error is None and not flags.text.is_file():
            error = f"{flags.text}: no such file; it must be a text, e.g. tinyshakespeare.txt of char-rnn"
        if error is not None:
            print(f"gpu-check: {error}", file=sys.stderr)
            return 2
        try:
            measure(flags.text, flags.folder, flags.seconds, flags.dry_run)
        except UserError as failed:
            print(f"gpu-check: {failed}", file=sys.stderr)
            return 2
    return 0


@contextlib.contextmanager
def _device(dry: bool) -> Iterator[str | None]:
    """A GPU; yields what is wrong with it."""
    import torch

    if dry:
        with pretend_gpu():
            yield None
    else:
        yield None if torch.cuda.is_available() else "torch sees no CUDA device here; --dry-run needs none"


if __name__ == "__main__":
    sys.exit(main())
