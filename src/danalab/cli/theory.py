"""Study a small model whose data follow power laws, on which the theory of the optimizers can be computed exactly.

Each command computes one study and writes a figure, its curves and its parameters.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from danalab.theory_studies import STUDIES, StudyFlags
from danalab.train.config.flags import Answer


def _command(flags_type: type[StudyFlags], place: str) -> Callable[[StudyFlags], Answer]:
    def run(flags: StudyFlags) -> Answer:
        module, _, function = place.partition(":")
        studies = getattr(import_module(f"danalab.theory.{module}"), function)(flags)
        studies = studies if isinstance(studies, list) else [studies]
        results = [{"study": s.name, "findings": s.findings, "files": s.save(flags.out)} for s in studies]
        lines = []
        for result in results:
            lines += [f"{result['study']}: {result['files']['png']}", *_lines(result["findings"], "  ")]
        return Answer(results[0] if len(results) == 1 else {"studies": results}, lines)

    run.__doc__ = flags_type.__doc__
    return run


VERBS = {
    f"theory {name}": (flags_type, _command(flags_type, place))
    for name, (flags_type, place) in STUDIES.items()
}


def _lines(findings: dict[str, Any], indent: str) -> Iterator[str]:
    width = max((len(name) for name, value in findings.items() if not isinstance(value, dict)), default=0)
    for name, value in findings.items():
        if isinstance(value, dict):
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield f"{indent}{name}"
            lines = [list(value[0]), *([_number(cell) for cell in row.values()] for row in value)]
            widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
            yield from (f"{indent}  {'  '.join(map(str.ljust, line, widths)).rstrip()}" for line in lines)
        else:
            cells = value if isinstance(value, list) else [value]
            yield f"{indent}{name:<{width}}  {', '.join(map(_number, cells))}"


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
