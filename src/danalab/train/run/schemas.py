"""Schemas of the files that programs write in a run folder: a misfit is an error of one line, unknown keys stay."""

from dataclasses import fields
from typing import Annotated, Any

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, with_config
from typing_extensions import NotRequired, Required, TypedDict

from danalab.files import validated as validated_content
from danalab.train.config.fields import plain, validated
from danalab.train.config.train_config import TrainConfig

_Count: Any = Annotated[int, Field(ge=0)]
_Number: Any = Annotated[float, Field(allow_inf_nan=False)]
_METRICS: dict[str, Any] = {
    "tokens": _Count | None,
    **dict.fromkeys(
        ("train/loss", "val/loss", "val/bpb", "lr", "grad_norm", "update_norm", "mfu", "flops", "time",
         "tokens_per_second", "seconds_per_step", "memory_gib"),
        _Number | None,
    ),
}  # fmt: skip


def _schema(name: str, **fields: Any) -> Any:
    make: Any = TypedDict
    return with_config(ConfigDict(strict=True, extra="allow"))(make(name, fields, total=False))


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
)
"""meta.json of a checkpoint."""

Manifest = _schema(
    "Manifest", files=Required[dict[str, _schema("_File", bytes=Required[_Count], sha256=Required[str])]]
)
"""manifest.json of a checkpoint."""

Step: Any = Annotated[int, Field(ge=0, strict=True)]
"""A file of one number, of DiLoCo's exchange."""
Workers: Any = list[Step]

WandbId = _schema("WandbId", id=Required[Annotated[str, Field(pattern=r"^[\w-]+$")]])
"""wandb.json."""


_OPEN = ConfigDict(extra="allow")


class DatasetRecord(TypedDict):
    """The data that a run was trained on."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    path: str
    fingerprint: str
    tokens: NotRequired[NonNegativeInt]
    tokenizer: NotRequired[str | None]


class PlanRecord(TypedDict):
    """The part of a plan that is read again."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    non_emb_params: NonNegativeInt
    total_params: NotRequired[NonNegativeInt]
    steps: NotRequired[PositiveInt]


class RunRecord(TypedDict):
    """config.json. A model that was imported has no plan and no dataset."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]
    stage: NotRequired[str]
    config: dict[str, Any]
    model: NotRequired[dict[str, Any]]
    params: NotRequired[NonNegativeInt]
    plan: NotRequired[PlanRecord]
    dataset: NotRequired[DatasetRecord]
    steps: NotRequired[PositiveInt]
    tokens_per_step: NotRequired[PositiveInt]
    lr_source: NotRequired[str]
    device: NotRequired[str]
    world_size: NotRequired[PositiveInt]
    versions: NotRequired[dict[str, str | None]]
    imported_from: NotRequired[dict[str, str]]


def check_record(content: Any, where: str) -> dict[str, Any]:
    """The content of config.json with typed values; settings that are newer than the run have their defaults.

    Raises:
        UserError: malformed; names the entry.
    """
    record: dict[str, Any] = dict(validated_content(RunRecord, content, where))
    known = {field.name for field in fields(TrainConfig)}
    settings = validated(TrainConfig, {k: v for k, v in record["config"].items() if k in known}, f"{where}: config")
    # Version 0.1 had no bound of the weight decay.
    record["config"] = {**TrainConfig().as_dict(), "decay_bound": 0.0, **record["config"], **plain(settings)}
    # A file that was written by hand may lack them; a run always has them.
    for name, value in (("seq_len", record.setdefault("model", {}).get("seq_len")), ("batch_size", 1)):
        if record["config"][name] is None:
            record["config"][name] = value
    return record
