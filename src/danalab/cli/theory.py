"""Study a small model whose data follow power laws, on which the theory of the optimizers can be computed exactly.

Each command computes one study and writes a figure, its curves and its parameters.
"""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from danalab.files import finite
from danalab.theory_studies import STUDIES, StudyFlags


def _command(flags_type: type[StudyFlags], place: str) -> Callable[[StudyFlags], None]:
    def run(flags: StudyFlags) -> None:
        module, _, function = place.partition(":")
        studies = getattr(import_module(f"danalab.theory.{module}"), function)(flags)
        studies = studies if isinstance(studies, list) else [studies]
        results = [{"study": s.name, "findings": s.findings, "files": s.save(flags.out)} for s in studies]
        if flags.json:
            print(
                json.dumps(finite(results[0] if len(results) == 1 else {"studies": results}), allow_nan=False)
            )
            return
        for result in results:
            print(f"{result['study']}: {result['files']['png']}")
            _print(result["findings"], "  ")

    run.__doc__ = flags_type.__doc__
    return run


SUBVERBS = {name: (flags_type, _command(flags_type, place)) for name, (flags_type, place) in STUDIES.items()}


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
