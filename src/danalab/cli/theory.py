"""Study a small model whose data follow power laws, on which the theory of the optimizers can be computed exactly.

Each command computes one study and writes a figure, its curves and its parameters.
"""

from collections.abc import Callable
from importlib import import_module

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
            lines.append(f"{result['study']}: {result['files']['png']}")
            lines += [f"  {name}: {value:.5g}" for name, value in result["findings"].items()]
        return Answer(results[0] if len(results) == 1 else {"studies": results}, lines)

    run.__doc__ = flags_type.__doc__
    return run


VERBS = {
    f"theory {name}": (flags_type, _command(flags_type, place))
    for name, (flags_type, place) in STUDIES.items()
}
