"""The schema of a row of ladder.jsonl: what fits, tables and figures may rely on, whoever wrote the file."""

import math
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from danalab.errors import UserError
from danalab.ladder.runs.grid import is_number


def _whole(value: Any) -> Any:
    """JSON of other programs has 1e5 for 100000."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _file_name(value: str) -> str:
    """Names become names of files: none may lead out of its folder."""
    if value in ("", ".", "..") or PurePath(value).name != value or not value.isprintable() or "\\" in value:
        raise ValueError("the name of a file without a folder is expected")
    return value


FileName = Annotated[str, Field(max_length=200), AfterValidator(_file_name)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=10**18)]
Size = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=10**15)]
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
Positive = Annotated[float, Field(gt=0, le=1e300)]
NotNegative = Annotated[float, Field(ge=0, le=1e300)]


_OPTIMIZERS_NUMBERS = ("gamma3", "beta1", "beta2", "momentum")
"""Settings of optimizers that figures take as numbers."""


class LadderRow(BaseModel):
    """One run. Further fields are kept as they are."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=True)

    name: FileName
    opt: Annotated[str, Field(min_length=1, max_length=100)]
    arch: str | None = None
    status: str = "finished"
    seed: Annotated[int, BeforeValidator(_whole)] = 0
    lr: Positive | None = None
    lr_multiplier: Positive | None = None
    kappa: Number | None = None
    params: Size
    non_emb_params: Size
    data_tokens: Count | None = None
    entropy: NotNegative | None = None
    tokens: Count | None = None
    flops: NotNegative | None = None
    final_loss: float | None = None
    """Not finite: the run diverged."""
    val_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the validation split that `final_loss` is over."""
    best_loss: float | None = None
    seconds: NotNegative | None = None
    device_hours: NotNegative | None = None
    tokens_per_second: NotNegative | None = None
    world_size: Size = 1
    device: str | None = None
    curve: str
    run: str | None = None
    settings: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, row: Any) -> Any:
        """Older ladders leave some fields out."""
        if not isinstance(row, dict) or "curve" not in row or "params" not in row:
            return row
        defaults = {"name": PurePath(str(row["curve"])).stem, "non_emb_params": row["params"]}
        optional = ("settings", "world_size", "status", "seed")  # None stands for the default
        return {**defaults, **{key: value for key, value in row.items() if value is not None or key not in optional}}

    @field_validator("final_loss")
    @classmethod
    def _loss_is_not_negative(cls, loss: float | None) -> float | None:
        if loss is not None and loss <= 0:
            raise ValueError("a positive number is expected")
        return loss

    @field_validator("settings")
    @classmethod
    def _numbers_are_numbers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for key, value in settings.items():
            if (is_number(key) or key in _OPTIMIZERS_NUMBERS) and not isinstance(value, (int, float, type(None))):
                raise ValueError(f"where {key} is {value!r}, a number is expected")
        return settings

    @model_validator(mode="after")
    def _has_what_fits_need(self) -> "LadderRow":
        if self.final_loss is not None and math.isfinite(self.final_loss):
            for key in ("lr", "tokens", "flops"):
                if not getattr(self, key):
                    raise ValueError(
                        f"{key} is {getattr(self, key)!r} beside a final loss, a positive number is expected"
                    )
        return self


def checked_row(row: Any) -> dict[str, Any]:
    """A row of ladder.jsonl with its defaults filled in."""
    try:
        return LadderRow.model_validate(row).model_dump()
    except ValidationError as error:
        raise UserError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    derived = ("name", "non_emb_params")
    missing = [each["loc"][0] for each in problems if each["type"] == "missing" and each["loc"][0] not in derived]
    if missing:
        return f"no {', '.join(map(str, missing))}"
    first = problems[0]
    kind, message = first["type"], first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return "an object is expected" if kind == "model_type" else message
    if kind in ("int_type", "float_type"):
        message = "a number is expected"
    shown = repr(first["input"])
    return f"{'.'.join(map(str, first['loc']))} is {shown if len(shown) < 80 else shown[:77] + '...'}, {message}"
