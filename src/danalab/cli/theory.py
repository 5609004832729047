"""Power-law random features: curves, phases, schedules, sparse experts, momentum cooldown, predictions; figures."""

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
    """Loss curves of SGD, SGD-M, DANA-constant, DANA-decaying and AdEMAMix: exact, in log time, and stochastic."""
    _study(flags, "plrf")


def phases(flags: PhaseFlags) -> None:
    """The phase diagram, the compute-optimal frontier at one point of it, and local slopes in three phases."""
    from danalab.theory.studies.phases import compute_frontier, local_slopes, phase_diagram

    if flags.sizes < 3 or flags.points < 3:
        raise UserError(f"--sizes {flags.sizes} and --points {flags.points}: at least 3 of each are needed")
    sizes = [100 * 2**k for k in range(flags.sizes)]
    frontier = compute_frontier(flags.alpha, flags.beta, sizes, flags.h)
    _finish(flags, phase_diagram(flags.points), frontier, local_slopes(h=flags.h))


def hummingbird(flags: HummingbirdFlags) -> None:
    """Risk against steps for every kappa on one data stream: ADana, Dana-MK4, Dana-Star-MK4, Adam, SGD."""
    _study(flags, "races", "hummingbird_study")


def moe(flags: MoEFlags) -> None:
    """A mixture of experts with rare gradients: total risk, and every expert on its own clock."""
    _study(flags, "races", "moe_study")


def tau(flags: TauFlags) -> None:
    """The tau estimator of Dana-Star: against the activity, over experts, and its distribution."""
    _study(flags, "tau_statistics")


def schedules(flags: ScheduleFlags) -> None:
    """Weight and memory of the momentum over time, and the loss against kappa: a U with a cliff on its left."""
    _study(flags, "schedules")


def cooldown(flags: CooldownFlags) -> None:
    """Momentum cooldown: which change of the momentum with a decaying learning rate gives the least final risk."""
    from danalab.theory.studies.cooldown import compute

    _finish(flags, compute(**_own(flags)))


def memory(flags: MemoryFlags) -> None:
    """The mean age of the momentum: constant, in log time, with the learning rate, and the best path of all."""
    from danalab.theory.studies.memory import compute

    _finish(flags, compute(**_own(flags)))


def rare_tokens(flags: RareTokensFlags) -> None:
    """Probability of rare tokens under SGD, Muon, AdamW, ADana and Dana-Star: closed form, a table, a language."""
    from danalab.data.sources.synthetic import Language
    from danalab.theory.studies.rare_tokens import compute

    settings = _own(flags)
    _finish(flags, compute(Language(words=settings.pop("words"), document_tokens=64), **settings))


def limit(flags: LimitFlags) -> None:
    """Limit loss, eigenvalues and target energy: deterministic equivalents against random draws."""
    if flags.draws < 1:
        raise UserError(f"--draws {flags.draws}: at least one is needed")
    _study(flags, "limits")


def predict(flags: PredictFlags) -> None:
    """Phase, kappa, exponents and curves for a measured spectrum; as a heuristic, against measured loss curves."""
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
