"""Schemas of the files that programs write in a run folder: a misfit is an error of one line, unknown keys stay."""

from dataclasses import fields
from functools import partial
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, with_config
from typing_extensions import Required, TypedDict

from danalab.errors import UserError
from danalab.files import validated as validated_content
from danalab.train.config.flags import plain, validated
from danalab.train.config.train_config import TrainConfig

_Count: Any = Annotated[int, Field(ge=0, lt=1 << 63)]  # more has no float, and no file has it
_Number: Any = Annotated[float, Field(allow_inf_nan=False)]
_METRICS: dict[str, Any] = {
    "tokens": _Count | None,
    **dict.fromkeys(
        (
            "train/loss",
            "val/loss",
            "val/bpb",
            "lr",
            "grad_norm",
            "update_norm",
            "mfu",
            "flops",
            "time",
            "tokens_per_second",
            "seconds_per_step",
            "memory_gib",
        ),
        _Number | None,
    ),
}


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

_DESCRIBED: dict[str, Any] = {
    "stage": str,
    "model": dict[str, Any],
    "params": NonNegativeInt,
    "world_size": PositiveInt,
    "versions": dict[str, str | None],
    "imported_from": dict[str, str],
}

RunRecord = _lax_schema(
    "RunRecord",
    **_DESCRIBED,
    given=dict[str, Any],
    config=Required[dict[str, Any]],
    plan=_lax_schema(
        "PlanRecord", non_emb_params=Required[NonNegativeInt], total_params=NonNegativeInt, steps=PositiveInt
    ),
    dataset=_lax_schema(
        "DatasetRecord",
        path=Required[str],
        fingerprint=Required[str],
        tokens=NonNegativeInt,
        tokenizer=str | None,
    ),
    steps=PositiveInt,
    tokens_per_step=PositiveInt,
    lr_source=str,
    device=str,
)
"""config.json: the settings as they were given and resolved; a model that was imported has neither plan nor dataset."""

BEFORE = (
    "{where} was written before the settings of a run became one record; danalab at commit 39ef0f9c reads it"
)


def check_record(content: Any, where: str) -> dict[str, Any]:
    """Content of config.json with typed values. A UserError names a malformed entry, or says which version reads it."""
    if isinstance(content, dict) and "budget" in content:
        raise UserError(BEFORE.format(where=where))
    record = dict(validated_content(RunRecord, content, where))
    known = {field.name for field in fields(TrainConfig)}
    settings = {name: value for name, value in record["config"].items() if name in known}
    record["config"] = {
        **TrainConfig().as_dict(),
        **record["config"],
        **plain(validated(TrainConfig, settings, where)),
    }
    if "plan" in record and record["config"]["lr"] is None:
        raise UserError(f"{where}: lr: a run that was trained has one")
    return record
