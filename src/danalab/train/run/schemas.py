"""Schemas of the files that a run writes: what does not fit is an error of one line, unknown keys are kept."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field, with_config
from typing_extensions import Required, TypedDict

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
