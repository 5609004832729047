"""Study a small model whose data follow power laws, on which the theory of the optimizers can be computed exactly.

Each command computes one study and writes a figure, its curves and its parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab.cli._shared.options import JsonFlags
from danalab.plugins import load_address
from danalab.registry import Registry


@dataclass(frozen=True, kw_only=True)
class StudyFlags(JsonFlags):
    """The parameters of a study; the docstring is its help."""

    out: Path = Path("theory")
    """Folder for the figure (png), its curves (npz) and its parameters (json)."""

    def settings(self) -> dict[str, Any]:
        """The study's own parameters."""
        return {name: value for name, value in vars(self).items() if name not in StudyFlags.__dataclass_fields__}


STUDIES: Registry[tuple[type[StudyFlags], str]] = Registry("study")
"""Name -> its parameters, and the address (module:NAME) of the function that makes one study of them, or several."""


def __getattr__(name: str) -> Any:
    """`SUBVERBS`: the studies, those of annexes and plugins included."""
    if name != "SUBVERBS":
        raise AttributeError(name)
    return {study: (STUDIES.get(study)[0], _command(*STUDIES.get(study))) for study in STUDIES.names()}


def _command(flags_type: type[StudyFlags], address: str) -> Callable[[StudyFlags], None]:
    def run(flags: StudyFlags) -> None:
        studies = load_address(address)(flags)
        studies = studies if isinstance(studies, list) else [studies]
        results = [{"study": s.name, "findings": s.findings, "files": s.save(flags.out)} for s in studies]
        if flags.print_json(results[0] if len(results) == 1 else {"studies": results}):
            return
        for result in results:
            print(f"{result['study']}: {result['files']['png']}")
            _print(result["findings"], "  ")

    run.__doc__ = flags_type.__doc__
    return run


def _print(findings: dict[str, Any], indent: str) -> None:
    width = max((len(name) for name, value in findings.items() if not isinstance(value, dict)), default=0)
    for name, value in findings.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _print(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{indent}{name}")
            lines = [list(value[0]), *([_number(cell) for cell in row.values()] for row in value)]
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            for line in lines:
                print(indent + "  " + "  ".join(map(str.ljust, line, widths)).rstrip())
        else:
            cells = value if isinstance(value, list) else [value]
            print(f"{indent}{name:<{width}}  {', '.join(map(_number, cells))}")


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
