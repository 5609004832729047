"""Schemas of the files that programs write in a run folder: a misfit is an error of one line, unknown keys stay."""

from dataclasses import fields
from functools import partial
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, with_config
from typing_extensions import Required, TypedDict

from danalab.errors import UserError
from danalab.files import validated as validated_content
from danalab.models.config import ModelConfig
from danalab.scaling import Plan
from danalab.scaling.learning_rate import PeakRate
from danalab.scaling.plan import OptimizerPlan, TrainingBudget
from danalab.train.config.experiment import SHARED_SETTINGS, shared_settings
from danalab.train.config.fields import plain, validated
from danalab.train.config.run_spec import RECORDED_AS, dimensions_of, settings_of
from danalab.train.config.train_config import TrainConfig

_Count: Any = Annotated[int, Field(ge=0, lt=1 << 63)]  # more has no float, and no file has it
_Number: Any = Annotated[float, Field(allow_inf_nan=False)]
_METRICS: dict[str, Any] = {
    "tokens": _Count | None,
    **dict.fromkeys(
        ("train/loss", "val/loss", "val/bpb", "lr", "grad_norm", "update_norm", "mfu", "flops", "time",
         "tokens_per_second", "seconds_per_step", "memory_gib"),
        _Number | None,
    ),
}  # fmt: skip


def _lax_schema(name: str, *, strict: bool = False, **fields: Any) -> Any:
    make: Any = TypedDict
    return with_config(ConfigDict(strict=strict, extra="allow"))(make(name, fields, total=False))


_schema = partial(_lax_schema, strict=True)


Row = _schema("Row", step=Required[_Count], **_METRICS)
"""A line of metrics.jsonl, or of another file with rows by step."""

Summary = _schema("Summary", status=Required[str], step=_Count, iterations=_Count, **_METRICS)
"""summary.json."""

Meta = _schema(
    "Meta",
    step=Required[_Count],
    imported=bool,
    config=dict[str, Any],
    model=dict[str, Any],
    optimizer=dict[str, Any] | None,
    callbacks=dict[str, dict[str, Any]],
    seconds=float,
    pending_row=Row | None,
    latest=dict[str, Any],
    average=_schema("_Average", kind=str, value=float, count=_Count),
)
"""meta.json of a checkpoint."""

Manifest = _schema(
    "Manifest", files=Required[dict[str, _schema("_File", bytes=Required[_Count], sha256=Required[str])]]
)
"""manifest.json of a checkpoint."""

RunId = _schema("RunId", id=Required[Annotated[str, Field(pattern=r"^[\w-]+$")]])
"""wandb.json and trackio.json."""


_DESCRIBED: dict[str, Any] = {
    "stage": str, "model": dict[str, Any], "params": NonNegativeInt, "world_size": PositiveInt,
    "versions": dict[str, str | None], "imported_from": dict[str, str],
}  # fmt: skip
_DATASET: dict[str, Any] = {"path": Required[str], "fingerprint": Required[str], "tokens": NonNegativeInt}

RunRecord = _lax_schema(
    "RunRecord",
    **_DESCRIBED,
    given=Required[dict[str, Any]],
    budget=_lax_schema(
        "BudgetRecord",
        **dict.fromkeys(("iterations", "global_batch", "sequence_length", "batch_size"), Required[PositiveInt]),
        **dict.fromkeys(("warmup_steps", "total_tokens", "flops", "flops_per_token"), Required[NonNegativeInt]),
    ),
    optimizer=_lax_schema(
        "OptimizerRecord",
        opt=Required[str],
        lr_source=Required[str],
        **dict.fromkeys(("lr", "kappa", "delta", "omega", "weight_decay", "decay_bound"), Required[_Number]),
        **dict.fromkeys(("wd_ts", "optimizer_flops"), Required[_Number | None]),
        optimizer_settings=dict[str, Any],
    ),
    execution=dict[str, Any],
    dataset=_lax_schema("DatasetRecord", **_DATASET, tokenizer_name=str | None),
    device_name=str,
)
"""config.json; values are converted. A model that was imported has neither budget, optimizer nor dataset."""

OldRunRecord = _lax_schema(
    "OldRunRecord",
    **_DESCRIBED,
    config=Required[dict[str, Any]],
    plan=_lax_schema(
        "PlanRecord", non_emb_params=Required[NonNegativeInt], total_params=NonNegativeInt, steps=PositiveInt
    ),
    dataset=_lax_schema("OldDatasetRecord", **_DATASET, tokenizer=str | None),
    steps=PositiveInt,
    tokens_per_step=PositiveInt,
    lr_source=str,
    device=str,
)
"""config.json until version 0.2, where `config` had all settings and `plan` many of them once more."""


def check_record(content: Any, where: str) -> dict[str, Any]:
    """Content of config.json with typed values: `config`, all settings by the names of their flags; `plan`, the run as
    the scaling rules see it; `model`; `dataset`; ... A UserError names a malformed entry."""
    if isinstance(content, dict) and "given" in content:
        record = _joined(dict(validated_content(RunRecord, content, where)), where)
    else:
        record = dict(validated_content(OldRunRecord, content, where))
    known = {field.name for field in fields(TrainConfig)}
    settings = validated(TrainConfig, {k: v for k, v in record["config"].items() if k in known}, f"{where}: config")
    # Version 0.1 had no bound of the weight decay, and 0.2 no law of the horizon.
    older = {"decay_bound": 0.0, "horizon_law": "none"}
    try:
        shared = shared_settings(record["config"])
    except UserError as error:
        raise UserError(f"{where}: config: {error}") from error
    record["config"] = {**TrainConfig().as_dict(), **older, **record["config"], **plain(settings), **shared}
    # A file that was written by hand may lack them; a run always has them.
    for name, value in (("seq_len", record.setdefault("model", {}).get("seq_len")), ("batch_size", 1)):
        if record["config"][name] is None:
            record["config"][name] = value
    return record


def _joined(record: dict[str, Any], where: str) -> dict[str, Any]:
    """The parts of a record as its readers have them, with what follows from the parts."""
    parts = {name: record.pop(name, {}) for name in ("given", "budget", "optimizer", "execution")}
    model = ModelConfig.from_dict(record.get("model", {}), f"{where}: model")
    known = {field.name for field in fields(TrainConfig)} | SHARED_SETTINGS.keys()
    settings = {name: value for part in parts.values() for name, value in part.items() if name in known}
    settings |= parts["given"]  # a stage has further ones
    record["config"] = settings_of(model) | settings
    if "device_name" in record:
        record["device"] = record.pop("device_name")
    if "dataset" in record:
        record["dataset"]["tokenizer"] = record["dataset"].pop("tokenizer_name", None)
    budget, chosen = parts["budget"], dict(parts["optimizer"])
    if budget and chosen:
        rate: dict[str, Any] = {name[3:]: chosen.get(name) for name in ("lr_source", "lr_law_batch", "lr_batch_factor")}
        planned = Plan(
            dims=dimensions_of(model),
            budget=TrainingBudget(
                **{each.name: budget[RECORDED_AS.get(each.name, each.name)] for each in fields(TrainingBudget)}
            ),
            optimizer=OptimizerPlan(
                peak=PeakRate(chosen["lr"], **rate),
                **{each.name: chosen[each.name] for each in fields(OptimizerPlan) if each.name != "peak"},
            ),
        )
        record["config"] |= {"seq_len": planned.seq_len}
        record |= {
            "plan": planned.as_dict(),
            "steps": settings.get("extend_to") or planned.steps,
            "tokens_per_step": planned.tokens_per_step,
            "lr_source": planned.lr_source,
        }
    return record
