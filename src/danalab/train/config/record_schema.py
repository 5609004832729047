"""The schema of config.json of a run folder, of this version and of older ones."""

from dataclasses import fields
from typing import Any

from pydantic import ConfigDict, NonNegativeInt, PositiveInt
from typing_extensions import NotRequired, TypedDict

from danalab.files import validated as validated_content
from danalab.train.config.fields import plain, validated
from danalab.train.config.train_config import TrainConfig

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
