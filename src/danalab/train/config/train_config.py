"""The configuration of a training run: all sections together. None means automatic: `resolve` fills it in.

Needs no torch; the docstring below each field is its help on the command line.
"""

import hashlib
import json
import os
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from danalab.errors import UserError
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.optimizers import OMEGA, short_name
from danalab.train.config.execution import (
    CheckpointSettings,
    EvaluationSettings,
    ExecutionSettings,
    JobSettings,
    ParallelSettings,
    TrackingSettings,
)
from danalab.train.config.experiment import (
    SHARED_SETTINGS,
    BatchSettings,
    DataSettings,
    LossSettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    SeedSettings,
    StartSettings,
    shared_settings,
)
from danalab.train.config.fields import names_of

if TYPE_CHECKING:
    from danalab.models.config import ModelConfig
    from danalab.scaling.plan import OptimizerPlan, TrainingBudget

BUILT_IN_TEXT = "stdlib"
"""The source that needs neither network nor files."""


@dataclass(frozen=True, kw_only=True)
class RunSettings(
    JobSettings,
    TrackingSettings,
    EvaluationSettings,
    CheckpointSettings,
    ParallelSettings,
    ExecutionSettings,
    LossSettings,
    ScheduleSettings,
    OptimizerSettings,
    BatchSettings,
    SeedSettings,
):
    """Settings of every stage of training, whatever its model and data."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunSettings, DataSettings, StartSettings, ModelSettings):
    """Settings of `danalab train`; fields come from the last section to the first.

    UserError: a setting out of its range. What only shows together with the data or the scaling rules is refused by
    `danalab.train.config.resolve`.
    """

    stage: ClassVar[str] = "danalab.train.pretraining:PRETRAINING"
    """The `StageKind` that trains by these settings, as MODULE:NAME."""

    @property
    def source(self) -> str:
        """`data`; by default the corpus that the rule of a size was fitted on, else text that is on every machine.

        A size by rule (--heads, --size) asks for the published run, so it has its data; explicit dimensions are for
        trying things out.
        """
        if self.data is not None:
            return self.data
        if self.heads is None and self.size is None:
            return BUILT_IN_TEXT
        return "fineweb-edu" if ARCHITECTURES.get(self.arch).oscillators else "fineweb-100bt"

    @staticmethod
    def translate_words(words: Sequence[str]) -> list[str]:
        """Words of a command line, with flags of the original code as ours."""
        return translate(words)


_NO_EFFECT = frozenset(
    ("config-format", "wd-decaying", "experiment-name", "run-prefix", "wandb-run-prefix", "model-sharding", "moe")
)
"""Flags that change nothing here: our defaults, or names of the original's own folders."""
_ONLY = {
    "use-pretrained": (("none", "auto"), "danalab import reads pre-trained models"),
    "eval-seq-prefix": (("none",), "danalab generate samples text from a run"),
}
"""Flags of which one value is the only behaviour that exists here."""
_ENVIRONMENT = {"datasets-dir": "DATASETS_DIR", "results-base-folder": "RESULTS_BASE_FOLDER"}
_OPTIMIZER = {"adema-alpha": "alpha", "muon-ns-steps": "ns-steps"}


def translate(words: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """`words` with the original's flags in our form; all others stay. `environment` takes folders it has flags for."""
    translated: list[str] = []
    named: dict[str, str] = {}
    pending = list(reversed(words))
    while pending:
        word = pending.pop()
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("_", "-") if flag.startswith("--") else ""
        known = name in {*_NO_EFFECT, *_ONLY, *_ENVIRONMENT, *_OPTIMIZER, "scaling-rule", "checkpoint-every-n"}
        if name in ("model", "arch", "activation-checkpointing") or known:
            if not equals and pending and not pending[-1].startswith("--"):
                value = pending.pop()
            named[name] = value
        if name in _ONLY and value.lower() not in _ONLY[name][0]:
            raise UserError(f"{flag} {value}: {_ONLY[name][1]}; leave it out")
        if name in _OPTIMIZER:
            translated.append(f"--{_OPTIMIZER[name]}={value}")
        elif name in _ENVIRONMENT:
            environment[_ENVIRONMENT[name]] = value
        elif name in ("model", "arch"):
            parts = ["--arch=moe", "--expert-parallel"] if value == "moe_expert_parallel" else [f"--arch={value}"]
            translated += parts
        elif not known and name != "activation-checkpointing":
            translated.append(word)
    if named.get("scaling-rule", "none").lower() != "none" and not {"model", "arch"} & named.keys():
        translated.append(f"--arch={named['scaling-rule']}")
    every = named.get("checkpoint-every-n")
    if "activation-checkpointing" in named:  # a switch there
        translated.append(f"--activation-checkpointing={named['activation-checkpointing'] or f'every-n:{every or 1}'}")
    elif every not in (None, "1"):
        raise UserError(f"--checkpoint_every_n {every}: needs --activation_checkpointing")
    given = {word.partition("=")[0].replace("_", "-") for word in translated}
    if "moe" in named and not {"--moe-num-experts", "--n-experts"} & given:
        translated.append("--n-experts=8")
    return translated


# ---- names of runs ----

_SHOWN = frozenset(
    {"arch", "opt", "d_model", "n_layers", "n_experts", "top_k", "full_attention_interval", "mixer",
     "learned_positions", "conv_width", "phase_lr_factor", "global_batch", "seq_len", "iterations", "lr", "seed",
     "scheduler"}
)  # fmt: skip
"""Settings that stand in a name by themselves."""


def default_name(
    given: TrainConfig, model: "ModelConfig", chosen: "OptimizerPlan", budget: "TrainingBudget", data_name: str
) -> str:
    """The name of a run: its main settings, then a digest of all others that were given."""
    size = f"h{given.heads}" if given.heads is not None else f"d{model.d_model}x{model.n_layers}"
    if (sparse := model.sparsity) is not None:
        size += f"-e{sparse.n_experts}k{sparse.top_k}"
    if (model.full_attention_interval or 1) > 1:
        size += f"-a{model.full_attention_interval}"
    if given.mixer is not None:
        size += "-nomixer" if given.mixer == "none" else f"-{given.mixer}"
    if given.learned_positions is not None:
        size += "-positions" if given.learned_positions else "-nopositions"
    if given.conv_width:
        size += f"-conv{given.conv_width}"
    if given.phase_lr_factor != 1:
        size += f"-phase{given.phase_lr_factor:g}"
    words = [model.arch, short_name(chosen.opt), size, data_name, f"b{budget.global_batch}x{budget.seq_len}"]
    words += [f"i{budget.steps}", f"lr{chosen.lr:.3g}", f"s{given.seed}"]
    if given.scheduler != TrainConfig.scheduler:
        words.append(given.scheduler)
    if given.kappa != _defaults().kappa:
        words.append(f"k{given.kappa:g}")
    names = names_of(TrainConfig, "run") - _SHOWN
    if given.lr is not None and float(f"{given.lr:.3g}") != given.lr:
        names |= {"lr"}
    further = {name: value for name, value in given.optimizer_settings.items() if name != "kappa"}
    if digest := digest_of(replace(given, optimizer_settings=further | {"omega": chosen.omega}), names):
        words.append(digest)
    return "-".join(words)


def digest_of(config: TrainConfig, names: frozenset[str]) -> str:
    """Eight characters that tell apart configurations with other values of `names`; empty where all are defaults."""
    own = dict(config.optimizer_settings)
    shared = {name: own.pop(name) for name in SHARED_SETTINGS if name in own}
    values = {**config.as_dict(), "optimizer_settings": own, **shared}
    usual = {**_defaults().as_dict(), **shared_settings({"omega": OMEGA})}
    changed = {
        name: value
        for name, value in values.items()
        if (name in names or name in shared) and value is not None and value != usual.get(name)
    }
    return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8] if changed else ""


@cache
def _defaults() -> TrainConfig:
    # Made when it is needed: the validation imports pydantic, which help does without.
    return TrainConfig()
