"""Learning-rate schedules as pure functions: step -> factor of the peak learning rate. No torch needed.

Step i (0-based) is the one that makes update i + 1. With w = warmup steps, T = total steps:

    factor
      1 |      ______
        |    /       \\___            cos, linear   1/div up to 1 at i = w-1, down to 1/(div final_div) at i = T-1
        |   /            \\__         cos_inf       1/div up to 1 at i = w, half a cosine down, then constant
        |  /                \\_       wsd           up, hold, decay over the last fract_decay T steps
        | /                           powerlaw      up from 0, then init (1 + (i-w)/time_scale)^power, bounded
        |                             cos_restarts  up to 1 at i = w, then cosines from 1, one after another
        0---w-----------------T       none          1

Beyond T every schedule keeps its last value. Warmups of 0 and 1 steps are ordinary cases.
"""

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from danalab.errors import UserError, nearest
from danalab.tables import key_of, lookup

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

Schedule = Callable[[int], float]


def get_schedule(name: str, steps: int, warmup: int = 0, **settings: Any) -> Schedule:
    """The schedule `name` over `steps` optimizer steps, the first `warmup` of which rise.

    Args:
        name: cos, linear, cos_inf, cos_restarts, wsd, powerlaw or none (hyphens as well as underscores); or
            somebody's own, FILE.py:NAME, called as NAME(steps, warmup, **settings).
        steps: length of the run [steps].
        warmup: length of the rise [steps]; "none" does not rise.
        settings: of that schedule; see `schedule_settings`.
    Returns:
        `schedule(i)`: the factor of the peak learning rate for the 0-based step i.
    Raises:
        UserError: unknown name or setting, `warmup >= steps`, or a setting out of range.
    """
    key = name if ":" in name else key_of(SCHEDULES, name, "schedule")
    known = schedule_settings(key)
    for setting in settings:
        if setting not in known:
            have = ", ".join(known) or "none"
            raise UserError(
                f"schedule '{key}' has no setting '{setting}'{nearest(setting, known)}; it has: {have}"
            )
    if steps < 1:
        raise UserError(f"schedule '{key}': steps is {steps}; it must be at least 1")
    if warmup < 0:
        raise UserError(f"schedule '{key}': warmup is {warmup} steps, must not be negative")
    if key != "none" and warmup >= steps:
        raise UserError(
            f"schedule '{key}': warmup of {warmup} steps does not fit in a run of {steps}; shorten it"
        )
    for setting, value in settings.items():
        if isinstance(value, (int, float)) and not math.isfinite(value):
            raise UserError(f"schedule '{key}': {setting} is {value}; it must be finite")
    return lookup(SCHEDULES, key, "schedule", own=True)(steps, warmup, **settings)


def schedule_settings(name: str) -> dict[str, Any]:
    """The settings of schedule `name` with their defaults."""
    parameters = list(inspect.signature(lookup(SCHEDULES, name, "schedule", own=True)).parameters.values())[
        2:
    ]
    return {parameter.name: parameter.default for parameter in parameters}


def lr_scheduler(optimizer: "Optimizer", schedule: Schedule) -> "LambdaLR":
    """A torch scheduler whose only state is the step; call `.step()` after `optimizer.step()`."""
    from torch.optim.lr_scheduler import LambdaLR

    if not callable(schedule):
        what = type(schedule).__name__
        raise UserError(
            f"lr_scheduler: schedule is a {what}; it must be what get_schedule(NAME, STEPS) returns"
        )
    return LambdaLR(optimizer, schedule)


def cos(steps: int, warmup: int, div_factor: float = 100.0, final_div_factor: float = 1.0) -> Schedule:
    """One cycle: half a cosine up to 1 at step `warmup - 1`, half a cosine down to 1/(div_factor
    final_div_factor)."""
    return _one_cycle(steps, warmup, div_factor, final_div_factor, lambda x: (1 - math.cos(math.pi * x)) / 2)


def linear(steps: int, warmup: int, div_factor: float = 100.0, final_div_factor: float = 1.0) -> Schedule:
    """One cycle of straight lines: up to 1 at step `warmup - 1`, down to 1/(div_factor final_div_factor)."""
    return _one_cycle(steps, warmup, div_factor, final_div_factor, lambda x: x)


def cos_inf(
    steps: int, warmup: int, div_factor: float = 100.0, final_div_factor: float = 0.1, cos_inf_steps: int = 0
) -> Schedule:
    """Line up to 1 at step `warmup`, cosine down to 1/(div_factor final_div_factor), constant for
    `cos_inf_steps`."""
    _positive("cos_inf", div_factor=div_factor, final_div_factor=final_div_factor)
    length = steps - cos_inf_steps - warmup
    if cos_inf_steps < 0 or length <= 0:
        raise UserError(
            f"schedule 'cos_inf': warmup {warmup} + cos_inf_steps {cos_inf_steps} leave none of {steps} steps"
            " for the cosine; shorten one of them"
        )
    last = 1 / (div_factor * final_div_factor)
    return _after_rise(warmup, div_factor, lambda i: _half_cosine(min((i - warmup) / length, 1.0), last))


def cos_restarts(
    steps: int,
    warmup: int,
    div_factor: float = 100.0,
    final_div_factor: float = 0.1,
    cycles: int | None = None,
    cycle_factor: float = 1.0,
) -> Schedule:
    """Line up to 1 at step `warmup`, then `cycles` cosines, each from 1 down to 1/(div_factor
    final_div_factor).

    Each cycle is `cycle_factor` times as long as the one before; together they fill the run. Default 4
    cycles, in runs of fewer steps one a step. Source: Loshchilov and Hutter 2017, arXiv 1608.03983 (SGDR),
    with T_mult = `cycle_factor`.
    """
    _positive(
        "cos_restarts", div_factor=div_factor, final_div_factor=final_div_factor, cycle_factor=cycle_factor
    )
    length = steps - warmup
    cycles = min(4, length) if cycles is None else cycles
    if not 1 <= cycles <= length:
        raise UserError(
            f"schedule 'cos_restarts': cycles is {cycles}; it must be from 1 to the {length} steps left"
        )
    longest = cycles - 1 if cycle_factor > 1 else 0  # powers of at most 1 do not overflow
    shares = [cycle_factor ** (k - longest) for k in range(cycles)]
    if length * min(shares) < sum(shares) * (1 - 1e-9):
        raise UserError(
            f"schedule 'cos_restarts': {cycles} cycles by {cycle_factor:g}: one has less than a step"
        )
    starts = [warmup + length * sum(shares[:k]) / sum(shares) for k in range(cycles + 1)]
    last = 1 / (div_factor * final_div_factor)

    def cycle(i: int) -> float:
        k = min(bisect_right(starts, i), cycles)
        return _half_cosine(min((i - starts[k - 1]) / (starts[k] - starts[k - 1]), 1.0), last)

    return _after_rise(warmup, div_factor, cycle)


def wsd(
    steps: int,
    warmup: int,
    div_factor: float = 100.0,
    final_lr_scale: float | None = None,
    fract_decay: float = 0.1,
    decay_type: str = "linear",
) -> Schedule:
    """Warmup, stable, decay: 1 until the last `fract_decay` of the run, then down to `final_lr_scale`
    (default 0).

    `decay_type`: linear, cosine, exp, mirror_cosine (also "miror_cosine"), square or sqrt. "exp" falls as
    final_lr_scale^x, which reaches 0 only by jumping there, so it asks for an explicit `final_lr_scale`.
    """
    _positive("wsd", div_factor=div_factor)
    kind = "mirror-cosine" if decay_type == "miror_cosine" else key_of(DECAYS, decay_type, "decay_type")
    if not 0 <= fract_decay <= 1:
        raise UserError(f"schedule 'wsd': fract_decay is {fract_decay}; it must be between 0 and 1")
    if final_lr_scale is None:
        if kind == "exp":
            raise UserError(
                "schedule 'wsd': decay_type 'exp' never falls to 0; give final_lr_scale, such as 0.01"
            )
        final_lr_scale = 0.0
    if not 0 <= final_lr_scale <= 1:
        raise UserError(f"schedule 'wsd': final_lr_scale is {final_lr_scale}; it must be between 0 and 1")
    decay_steps = int(fract_decay * steps)
    start = steps - decay_steps
    if warmup > start:
        raise UserError(f"schedule 'wsd': warmup {warmup} and decay {decay_steps} overlap in {steps} steps")
    decay, last = DECAYS[kind], final_lr_scale

    def hold(i: int) -> float:
        return 1.0 if i <= start or not decay_steps else decay(min((i - start) / decay_steps, 1.0), last)

    return _after_rise(warmup, div_factor, hold)


def powerlaw(
    steps: int,
    warmup: int,
    init_value: float = 1.0,
    saturation_value: float | None = None,
    power: float = -0.5,
    time_scale: float = 1.0,
) -> Schedule:
    """Line from 0 to `init_value` at step `warmup`, then init_value (1 + (i - warmup)/time_scale)^power.

    `saturation_value` bounds it: from below for power < 0 (default 0), from above otherwise (default: the
    peak, 1).
    """
    _positive("powerlaw", init_value=init_value, time_scale=time_scale)
    falls = power < 0
    bound = (0.0 if falls else 1.0) if saturation_value is None else saturation_value
    if bound < 0 or (bound == 0 and not falls):
        raise UserError(f"schedule 'powerlaw': saturation_value {bound} with power {power} must be positive")

    def factor(i: int) -> float:
        if i < warmup:
            return i / warmup * init_value
        value = init_value * (1 + (min(i, steps) - warmup) / time_scale) ** power
        return max(value, bound) if falls else min(value, bound)

    return factor


def none(steps: int, warmup: int) -> Schedule:
    """The peak learning rate at every step."""
    return lambda i: 1.0


def _one_cycle(
    steps: int, warmup: int, div_factor: float, final_div_factor: float, shape: Callable[[float], float]
) -> Schedule:
    """`shape` maps [0, 1] onto [0, 1] and is used for both phases, as torch's OneCycleLR does."""
    _positive("cos, linear", div_factor=div_factor, final_div_factor=final_div_factor)
    first, last = 1 / div_factor, 1 / (div_factor * final_div_factor)
    peak = max(warmup - 1, 0)

    def factor(i: int) -> float:
        if i < peak:
            return first + (1 - first) * shape(i / peak)
        if i == peak:
            return 1.0
        # Clamped: past the end a line would go on below zero.
        x = min((i - peak) / (steps - 1 - peak), 1.0) if steps - 1 > peak else 1.0
        return last + (1 - last) * (1 - shape(x))

    return factor


def _after_rise(warmup: int, div_factor: float, then: Schedule) -> Schedule:
    """A line from 1/div_factor up to 1 at step `warmup`, and another schedule from there on."""
    return lambda i: i / warmup + (1 - i / warmup) / div_factor if i < warmup else then(i)


def _positive(schedule: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise UserError(f"schedule '{schedule}': {name} is {value}; it must be positive")


def _line(x: float, last: float) -> float:
    return last + (1 - last) * (1 - x)


def _half_cosine(x: float, last: float) -> float:
    return last + (1 - last) * (1 + math.cos(math.pi * x)) / 2


DECAYS: dict[str, Callable[[float, float], float]] = {
    "linear": _line,
    "cosine": _half_cosine,
    "exp": lambda x, last: last**x,
    "mirror-cosine": lambda x, last: 2 * _line(x, last) - _half_cosine(x, last),
    "square": lambda x, last: last + (1 - last) * (1 - x * x),
    "sqrt": lambda x, last: last + (1 - last) * (1 - math.sqrt(x)),
}
"""The decays of wsd: (x in [0, 1], final factor) -> factor."""

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "cos": cos,
    "linear": linear,
    "cos_inf": cos_inf,
    "cos_restarts": cos_restarts,
    "wsd": wsd,
    "powerlaw": powerlaw,
    "none": none,
}
