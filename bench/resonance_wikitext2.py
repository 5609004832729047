r"""Does the resonance mixer learn language? Resonance, resonance without its mixer, and attention on WikiText-2.

    danalab data prepare text --tokenizer bpe-4096 --out DATA --input wikitext-2/train.txt \
        --val-input wikitext-2/valid.txt
    python bench/resonance_wikitext2.py --data DATA --runs FOLDER [--seeds 0 1] [--steps 400]

Three models of one size (within 1%) see the same tokens in the same order under the same optimizer: what differs is how
tokens are mixed. The loss is that of 64 windows of the validation split, the same for all; --full adds the whole split,
by position in the window. The result, bench/results/resonance_wikitext2.json, holds numbers only. Runs that reached
their last step are taken as they are: a second call goes on where a first one ended.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from danalab.benchmarks.timing import machine
from danalab.files import write_json

RESULT = Path(__file__).parent / "results" / "resonance_wikitext2.json"

SHAPE = ["--d-model", "128", "--n-layers", "4"]
WINDOWS = 64
MODELS = {
    "resonance": ["--arch", "resonance", "--mlp-dim", "320"],
    "no mixer": ["--arch", "resonance", "--mlp-dim", "320", "--mixer", "none"],
    # Attention has one more square matrix in a block, which its mlp gives back.
    "attention": ["--arch", "llama", "--n-heads", "4", "--mlp-dim", "278", "--tied-head", "true"],
}
SETTINGS = [
    "--seq-len", "512", "--batch-size", "8", "--opt", "adamw", "--beta1", "0.9", "--beta2", "0.95",
    "--weight-decay", "0.1", "--grad-clip", "1.0", "--z-loss", "0", "--scheduler", "cos",
    "--eval-interval", "100", "--eval-batches", "2", "--log-interval", "20", "--ckpt-interval", "200",
    "--device", "cpu",
]  # fmt: skip


def danalab(*words: str) -> dict[str, Any]:
    """The JSON object of one command."""
    done = subprocess.run([sys.executable, "-m", "danalab", *words, "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def last_rows(run: Path) -> list[dict[str, Any]]:
    """The rows with a validation loss, of a run that may not have begun."""
    file = run / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [row for row in rows if "val/loss" in row]


def measured(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One model trained with one seed."""
    run = arguments.runs / f"{name.replace(' ', '-')}-lr{arguments.lr:g}-i{arguments.steps}-s{seed}"
    init = arguments.attention_init if name == "attention" else "karpathy-gpt2"
    if not any(row["step"] == arguments.steps for row in last_rows(run)):
        danalab(
            "train", *MODELS[name], *SHAPE, *SETTINGS, "--init", init, "--data", str(arguments.data),
            "--run-dir", str(run), "--seed", str(seed), "--data-seed", str(1337 + seed), "--lr", str(arguments.lr),
            "--iterations", str(arguments.steps), "--warmup-steps", str(arguments.steps // 10),
        )  # fmt: skip
    rows = last_rows(run)
    record = json.loads((run / "config.json").read_text())
    found = {
        "seed": seed,
        "init": record["config"]["init"],
        "params": record["params"],
        "tokens": rows[-1]["tokens"],
        "val_loss": rows[-1]["val/loss"],
        "curve": [[row["tokens"], row["val/loss"]] for row in rows],
    }
    if arguments.full:
        whole = danalab("eval", "--run", str(run), "--batch-size", "16")
        found |= {"whole_split": whole["loss"], "by_position": whole["by_position"]}
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that `danalab data prepare` made")
    parser.add_argument("--runs", type=Path, required=True, help="where the run folders go")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=400, help="steps of 8 x 512 tokens")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--attention-init", default="karpathy-gpt2", help="resonance's is karpathy-gpt2")
    parser.add_argument("--full", action="store_true", help="evaluate on the whole validation split, too")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    models: dict[str, list[dict[str, Any]]] = {name: [] for name in MODELS}
    for seed in arguments.seeds:
        for name, results in models.items():
            results.append(measured(name, seed, arguments))
            print(f"seed {seed} {name:10} {results[-1]['val_loss']:.4f} nats a token", flush=True)
    means = {name: mean(one["val_loss"] for one in results) for name, results in models.items()}
    found = {
        "benchmark": "resonance_wikitext2",
        "machine": machine("cpu"),
        "data": "WikiText-2, byte-level BPE of 4096 ids trained on its training split",
        "val_windows": WINDOWS,
        "settings": {"common": SHAPE + SETTINGS, "models": MODELS, "lr": arguments.lr, "steps": arguments.steps},
        "models": models,
        "mean_val_loss": means,
        "behind_attention": means["resonance"] - means["attention"],
        "ahead_of_no_mixer": means["no mixer"] - means["resonance"],
    }
    write_json(arguments.output, found)
    print(f"resonance is {found['ahead_of_no_mixer']:.3f} nats a token better than without its mixer and "
          f"{found['behind_attention']:+.3f} against attention; written to {arguments.output}")  # fmt: skip


if __name__ == "__main__":
    main()
