"""The flags that only the original training code's commands have -> settings of `danalab train`.

Other spellings of our own flags (`--n_embd`, `--sequence_length`, `--wd_ts_const`) are `aliases` of the fields.
"""

import os
import sys
from typing import Any

from danalab.errors import UserError

NO_EFFECT = {
    "config_format": "all flags have one format; --config FILE.yaml reads them",
    "wd_decaying": "the optimizer decides; --opt adamw-decaying-wd and ADana decay it",
    "model_sharding": "--distributed-backend fsdp shards the model",
}
"""Flags that change nothing here, and what takes their place."""
NAMES = ("run_prefix", "wandb_run_prefix", "experiment_name")
"""Flags that name the run: joined to --name; a prefix alone is a folder of runs."""
ONLY = {
    "use_pretrained": (("none", "auto"), "danalab import reads pre-trained models"),
    "eval_seq_prefix": (("none",), "danalab generate samples text from a run"),
    "muon_ns_steps": (("5",), "muon always takes 5 Newton-Schulz iterations"),
}
"""Flags of which one value is the only behaviour that exists here, and what to do instead."""
ENVIRONMENT = {"datasets_dir": "DATASETS_DIR", "results_base_folder": "RESULTS_BASE_FOLDER"}
"""Flags that are environment variables here."""
FURTHER = ("adema_alpha", "no_amp", "scaling_rule", "checkpoint_every_n", "moe")
FLAGS = {*NO_EFFECT, *NAMES, *ONLY, *ENVIRONMENT, *FURTHER}


def take_over(given: dict[str, Any]) -> None:
    """Replace the original's flags in `given`, fields and text, by settings of ours and environment variables."""
    theirs = {name: given.pop(name) for name in list(given) if name in FLAGS}
    for name, value in theirs.items():
        if name in ONLY and value.lower() not in ONLY[name][0]:
            raise UserError(f"--{name} {value}: {ONLY[name][1]}; leave it out")
        if name in NO_EFFECT:
            print(f"danalab: --{name} is ignored: {NO_EFFECT[name]}", file=sys.stderr)
        if name in ENVIRONMENT:
            os.environ[ENVIRONMENT[name]] = value
    if theirs.get("scaling_rule", "none").lower() != "none":
        given.setdefault("arch", theirs["scaling_rule"])
    if "moe" in theirs:
        given.setdefault("n_experts", "8")
    if "no_amp" in theirs:
        given["dtype"] = "float32"
    if "adema_alpha" in theirs:
        given["optimizer_settings"] = [*given.get("optimizer_settings", []), f"alpha={theirs['adema_alpha']}"]
    label = "-".join(dict.fromkeys(theirs[name] for name in NAMES if theirs.get(name)))
    if "experiment_name" in theirs:
        given["name"] = label
    elif label:
        os.environ["RESULTS_BASE_FOLDER"] = os.path.join(
            os.environ.get("RESULTS_BASE_FOLDER") or "runs", label
        )
    every = theirs.get("checkpoint_every_n", "1")
    if every != "1":
        if given.get("activation_checkpointing") != "every-n:1":
            raise UserError(f"--checkpoint_every_n {every}: needs --activation_checkpointing")
        given["activation_checkpointing"] = f"every-n:{every}"
