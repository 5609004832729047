"""In place of `danalab train`: a run folder in no time, with the loss of a valley over rate and omega.

A run named in $BROKEN fails, one in $PREEMPTED stops the first time, one in $DIVERGES has no finite loss. $MADE gets
the name of every run.
"""

import json
import math
import os
import pathlib
import sys

words = sys.argv[1:] if sys.argv[1].startswith("--") else sys.argv[2:]
folder = pathlib.Path(words[words.index("--run-dir") + 1])
said = dict(word[2:].replace("-", "_").split("=", 1) for word in words if "=" in word)
with open(os.environ["MADE"], "a") as names:
    print(folder.name, file=names)
if folder.name in os.environ.get("BROKEN", "").split():
    sys.exit("danalab: error: no room for " + folder.name)
first = not (folder / "config.json").exists()
folder.mkdir(parents=True, exist_ok=True)
lr = 1e-3 * float(said.get("lr_multiplier", 1))
config = {
    "arch": "enoki",
    "seed": 0,
    "kappa": 0.85,
    "lr_multiplier": 1.0,
    "lr": lr,
    "global_batch": 8,
    **said,
}
config |= {
    "run_dir": str(folder),
    "seed": int(config["seed"]),
    "lr_multiplier": float(config["lr_multiplier"]),
}
config |= {
    "lr": lr,
    "d_model": 8,
    "n_layers": 1,
    "n_heads": 1,
    "head_dim": 8,
    "mlp_dim": 8,
    "vocab_size": 8,
    "seq_len": 8,
}
record = {
    "config": config,
    "params": 1000,
    "steps": 10,
    "plan": {"non_emb_params": 900, "total_params": 1000},
}
(folder / "config.json").write_text(json.dumps(record))
if first and folder.name in os.environ.get("PREEMPTED", "").split():
    print(json.dumps({"status": "interrupted", "step": 5}))
    sys.exit(85)
omega = float(said.get("omega", 4.0))
loss = 3 + math.log(lr / 1.2e-3) ** 2 + math.log(omega / float(os.environ.get("OMEGA", 4))) ** 2 / 10
summary = {"status": "finished", "step": 10, "val/loss": loss, "tokens": 100, "flops": 6e5, "time": 36.0}
if folder.name in os.environ.get("DIVERGES", "").split():
    summary = {"status": "nonfinite", "step": 3}
(folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "tokens": 100, "val/loss": loss}) + "\n")
(folder / "summary.json").write_text(json.dumps(summary))
print(json.dumps(summary))
