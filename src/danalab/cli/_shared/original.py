"""Words of the original training code's commands -> flags of `danalab train`.

Other spellings of our own flags (`--n_embd`, `--sequence_length`, `--wd_ts_const`) are `aliases` of the fields.
"""

import os
import sys
from collections.abc import MutableMapping, Sequence

from danalab.errors import UserError

NO_EFFECT = {
    "config-format": "all flags have one format; --config FILE.yaml reads them",
    "wd-decaying": "the optimizer decides; --opt adamw-decaying-wd and ADana decay it",
    "model-sharding": "--distributed-backend fsdp shards the model",
}
"""Flags that change nothing here, and what takes their place."""
NAMES = ("run-prefix", "wandb-run-prefix", "experiment-name")
"""Flags that name the run: joined to --name; a prefix alone is a folder of runs."""
ONLY = {
    "use-pretrained": (("none", "auto"), "danalab import reads pre-trained models"),
    "eval-seq-prefix": (("none",), "danalab generate samples text from a run"),
    "muon-ns-steps": (("5",), "muon always takes 5 Newton-Schulz iterations"),
}
"""Flags of which one value is the only behaviour that exists here, and what to do instead."""
ENVIRONMENT = {"datasets-dir": "DATASETS_DIR", "results-base-folder": "RESULTS_BASE_FOLDER"}
"""Flags that are environment variables here."""
OPTIMIZER = {"adema-alpha": "alpha"}
"""Settings of optimizers with names of their own there -> NAME of --set NAME=VALUE."""
MODELS = {"moe_expert_parallel": ["--arch=moe", "--expert-parallel"]}
"""Values of --model that are more than an architecture."""


def translate(words: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """`words` with the original's flags in our form; all others stay. `environment` takes folders it has flags for."""
    translated: list[str] = []
    named: dict[str, str] = {}
    known = {*NO_EFFECT, *NAMES, *ONLY, *ENVIRONMENT, *OPTIMIZER}
    known |= {
        "no-amp",
        "scaling-rule",
        "checkpoint-every-n",
        "moe",
        "model",
        "arch",
        "activation-checkpointing",
    }
    pending = list(reversed(words))
    while pending:
        word = pending.pop()
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("_", "-") if flag.startswith("--") else ""
        if name not in known:
            translated.append(word)
            continue
        if not equals and pending and not pending[-1].startswith("--"):
            value = pending.pop()
        named[name] = value
        if name in ONLY and value.lower() not in ONLY[name][0]:
            raise UserError(f"{flag} {value}: {ONLY[name][1]}; leave it out")
        if name in NO_EFFECT:
            print(f"danalab: {flag} is ignored: {NO_EFFECT[name]}", file=sys.stderr)
        if name == "no-amp":
            translated.append("--dtype=float32")
        elif name in OPTIMIZER:
            translated.append(f"--set={OPTIMIZER[name]}={value}")
        elif name in ENVIRONMENT:
            environment[ENVIRONMENT[name]] = value
        elif name in ("model", "arch"):
            translated += MODELS.get(value, [f"--arch={value}"])
    if named.get("scaling-rule", "none").lower() != "none" and not {"model", "arch"} & named.keys():
        translated.append(f"--arch={named['scaling-rule']}")
    label = "-".join(dict.fromkeys(named[name] for name in NAMES if named.get(name)))
    if "experiment-name" in named:
        translated.append(f"--name={label}")
    elif label:
        environment["RESULTS_BASE_FOLDER"] = os.path.join(
            environment.get("RESULTS_BASE_FOLDER") or "runs", label
        )
    every = named.get("checkpoint-every-n", "1")
    if "activation-checkpointing" in named:  # a switch there
        translated.append(
            f"--activation-checkpointing={named['activation-checkpointing'] or f'every-n:{every}'}"
        )
    elif every != "1":
        raise UserError(f"--checkpoint_every_n {every}: needs --activation_checkpointing")
    given = {word.partition("=")[0].replace("_", "-") for word in translated}
    if "moe" in named and not {"--moe-num-experts", "--n-experts"} & given:
        translated.append("--n-experts=8")
    return translated
