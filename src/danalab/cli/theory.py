"""Study a small model whose data follow power laws, on which the theory of the optimizers can be computed exactly.

Each command computes one study and writes a figure, its curves and its parameters.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.theory_flags import (
    CooldownFlags,
    FeaturesFlags,
    HummingbirdFlags,
    LimitFlags,
    MemoryFlags,
    MoEFlags,
    Output,
    PhaseFlags,
    PLRFFlags,
    PredictFlags,
    RareTokensFlags,
    ScheduleFlags,
    TauFlags,
)
from danalab.errors import UserError
from danalab.train.config.fields import plain

if TYPE_CHECKING:
    from danalab.theory.studies.study import Study


def plrf(flags: PLRFFlags) -> None:
    """How the loss of five optimizers falls over time: computed exactly, and simulated with noise."""
    _study(flags, "features", "plrf_study")


def phases(flags: PhaseFlags) -> None:
    """Which part of the loss dominates for which data (phases), and how size and steps share compute best."""
    from danalab.theory.studies.phases import compute_frontier, local_slopes, phase_diagram

    if flags.sizes < 3 or flags.points < 3:
        raise UserError(f"--sizes {flags.sizes} and --points {flags.points}: at least 3 of each are needed")
    sizes = [100 * 2**k for k in range(flags.sizes)]
    frontier = compute_frontier(flags.alpha, flags.beta, sizes, flags.h)
    _finish(flags, phase_diagram(flags.points), frontier, local_slopes(h=flags.h))


def hummingbird(flags: HummingbirdFlags) -> None:
    """The loss over time for several kappas: with too small a kappa it falls fast and then rises."""
    _study(flags, "races", "hummingbird_study")


def moe(flags: MoEFlags) -> None:
    """Experts that rarely receive a gradient: the total loss, and each expert in its own number of steps."""
    _study(flags, "races", "moe_study")


def tau(flags: TauFlags) -> None:
    """How well Dana-Star's tau estimates how often a weight receives a gradient."""
    _study(flags, "tau_statistics")


def schedules(flags: ScheduleFlags) -> None:
    """How weight and memory of the momentum grow over time, and which kappa gives the lowest loss."""
    _study(flags, "features", "schedule_study")


def cooldown(flags: CooldownFlags) -> None:
    """Whether a shorter momentum helps while the learning rate decays at the end of a run."""
    from danalab.theory.studies.cooldown import compute

    _finish(flags, compute(**_own(flags)))


def memory(flags: MemoryFlags) -> None:
    """The mean age of the momentum: constant, in log time, with the learning rate, and the best path of all."""
    from danalab.theory.studies.memory import compute

    _finish(flags, compute(**_own(flags)))


def rare_tokens(flags: RareTokensFlags) -> None:
    """How well five optimizers learn rare tokens: by formula, in a table, and in a small language."""
    from danalab.data.sources.synthetic import Language
    from danalab.theory.studies.rare_tokens import compute

    settings = _own(flags)
    _finish(flags, compute(Language(words=settings.pop("words"), document_tokens=64), **settings))


def limit(flags: LimitFlags) -> None:
    """The loss that remains after endless training: formulas compared with random draws."""
    if flags.draws < 1:
        raise UserError(f"--draws {flags.draws}: at least one is needed")
    _study(flags, "features", "limit_study")


def predict(flags: PredictFlags) -> None:
    """Predict kappa and loss curves for a spectrum that you measured, and compare them with your runs."""
    from danalab.cli._shared.measured_curves import measured_curves
    from danalab.theory.exponents import load_spectrum, power_law, predict
    from danalab.theory.measured import compare_curves, compare_ladder
    from danalab.theory.studies.prediction import compute

    if flags.spectrum is None and flags.alpha is None:
        raise UserError("give --spectrum FILE, or --alpha and --beta")
    lam, rho = power_law(flags.alpha or 0.0) if flags.spectrum is None else load_spectrum(flags.spectrum)
    expected = predict(
        lam, rho, alpha=flags.alpha, beta=flags.beta, limit=flags.limit, horizon=flags.horizon, batch=flags.batch
    )
    report = None
    if flags.runs:
        measured = [curve for path in flags.runs for curve in measured_curves(path)]
        single = all(len(curve.loss) == 1 for curve in measured) or len({curve.size for curve in measured}) > 1
        report = compare_ladder(measured, expected.compute) if single else compare_curves(measured, expected.speedup())
    settings = {name: plain(value) for name, value in _own(flags).items()}
    _finish(flags, compute(expected, report, **settings))


def _own(flags: Output) -> dict[str, Any]:
    return {name: value for name, value in vars(flags).items() if name not in vars(Output())}


def _study(flags: FeaturesFlags, module: str, function: str = "compute") -> None:
    """Compute, save and print the study of a module of `danalab.theory.studies`."""
    compute = getattr(import_module(f"danalab.theory.studies.{module}"), function)
    _finish(flags, compute(flags.model(), **flags.settings()))


def _finish(flags: Output, *studies: "Study") -> None:
    results = [{"study": s.name, "findings": s.findings, "files": s.save(flags.out)} for s in studies]
    if flags.print_json(results[0] if len(results) == 1 else {"studies": results}):
        return
    for result in results:
        print(f"{result['study']}: {result['files']['png']}")
        _print(result["findings"], "  ")


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


SUBVERBS = {
    "plrf": (PLRFFlags, plrf),
    "phases": (PhaseFlags, phases),
    "hummingbird": (HummingbirdFlags, hummingbird),
    "moe": (MoEFlags, moe),
    "tau": (TauFlags, tau),
    "schedules": (ScheduleFlags, schedules),
    "cooldown": (CooldownFlags, cooldown),
    "memory": (MemoryFlags, memory),
    "rare-tokens": (RareTokensFlags, rare_tokens),
    "limit": (LimitFlags, limit),
    "predict": (PredictFlags, predict),
}
