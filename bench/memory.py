"""The memory of momentum: what the theory says before runs, in a file with its date and commit, and what runs say.

python bench/memory.py --predict      # theory only: ten minutes of one core; refuses to change a file that is there
python bench/memory_runs.py --run     # the runs: an hour of one core
python bench/memory.py                # docs/memory.md and its figure from the stored predictions and rows
python bench/memory.py --ladder DIR   # the same, with the runs of bench/memory_nanogpt.yaml
"""

import argparse
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from danalab.ladder.fit.statistics import Interval, percentile_interval, student_interval
from danalab.models import build_model
from danalab.optim.rules.age import age_path
from danalab.optim.schedules import get_schedule
from danalab.report.formats import Table, as_markdown
from danalab_bench.pages import benchmark, fill_parts
from judge_calibration import pairs_of_a_t_test
from memory_nanogpt import NAME, OWN, STEPS, TRACK, compared, take
from memory_runs import FRESH, LENGTHS, MODEL, OPTIMIZERS, OTHERS, PREDICTIONS, Rows, read_rows, settings_of

ROOT = Path(__file__).parents[1]
PAGE, FIGURE = ROOT / "docs" / "memory.md", ROOT / "docs" / "figures" / "memory_cpu.png"
TOLD = {
    "exponent": "Under sign the best constant age grows like steps^p with p the mean of its exponents, 0.43; the map "
    "root (Adam, ADana without its damped Nesterov term) and the linear map at batch 1 want ages of 1 to 2 always.",
    "order": "Under sign log time ends behind the best constant age at 1,200 and 4,800 steps, and an age that rises as "
    "the learning rate falls, like s^-0.5, ends ahead of the best constant age; one that falls like s ends behind it.",
    "falling": "Under the linear map with batch 16 an age that falls like s ends ahead of the best constant age, by "
    "under 1% of the excess risk.",
}
"""What the runs are to show or to contradict, in words."""
NAMES = {"muon": "Muon", "adana": "ADana", "root": "ADana, undamped", "dana-muon": "DanaMuon",
         **{name: f"{name.replace('muon fresh', 'Muon')}" for name in FRESH}}  # fmt: skip
ARMS = {
    "log time": "log time", "follow": "follow", "falling": "falling", "two": "two buffers", "eight": "eight, falling",
}  # fmt: skip
PARAMETERS = sum(weight.numel() for weight in build_model(MODEL).parameters())
FAR = 0.1
"""Behind the best arm [nats/byte]."""
DRAWS = 1000
"""For the intervals of best ages."""
COLORS = {"constant": "#8c959f", "log time": "#d62728", "follow": "#238b45", "falling": "#1f6fb5", "two": "#c25a00",
          "eight": "#6639ba"}  # fmt: skip


def predict() -> dict[str, Any]:
    """The study of `danalab theory memory` at three lengths, and its words."""
    from danalab_annexes.theory.memory import compute
    from danalab_annexes.theory.studies import MemoryFlags

    study = compute(MemoryFlags(horizons=LENGTHS))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    return {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "parameters": study.parameters,
        "statements": TOLD,
        "rows": next(iter(study.findings.values())),
    }


def predicted(kind: str, steps: int) -> dict[str, Any]:
    """The prediction for a map and length at batch 1."""
    rows = json.loads(PREDICTIONS.read_text(encoding="utf-8"))["rows"]
    return next(row for row in rows if (row["map"], row["batch"], row["steps"]) == (kind, 1, steps))


# ---- what the rows say ----
class Found:
    """Losses of the arms by seed, at each arm's own rate; seed 0 chose the rates and is left out.

    At the second place all `rows` are compared.
    """

    def __init__(self, rows: Rows, *, second: bool = False):
        self.rows = rows if second else [row for row in rows if row["seed"]]

    @cached_property
    def losses(self) -> dict[tuple[str, int], dict[str, dict[int, float]]]:
        """(optimizer, steps) -> arm -> seed -> loss, of seeds that all arms have."""
        found: dict[tuple[str, int], dict[str, dict[int, float]]] = {}
        for row in self.rows:
            arm = found.setdefault((row["opt"], row["steps"]), {}).setdefault(row["arm"], {})
            arm[row["seed"]] = math.inf if row["loss"] is None else row["loss"]
        for key, arms in found.items():
            common = set.intersection(*(set(losses) for losses in arms.values()))
            found[key] = {arm: {seed: losses[seed] for seed in sorted(common)} for arm, losses in arms.items()}
        return {key: arms for key, arms in found.items() if len(next(iter(arms.values()))) > 1}

    def constants(self, opt: str, steps: int) -> dict[float, list[float]]:
        """Constant age -> losses by seed."""
        arms = self.losses[opt, steps]
        known = {float(arm.split()[1]): list(arms[arm].values()) for arm in arms if arm.startswith("constant")}
        return dict(sorted(known.items()))

    def best_constant(self, opt: str, steps: int) -> str:
        """The arm with the least mean loss: chosen by the seeds that it is compared with, which favours it."""
        known = self.constants(opt, steps)
        return f"constant {min(known, key=lambda age: fmean(known[age])):g}"

    def spread(self, opt: str, steps: int) -> tuple[float, int]:
        """Variance of a loss beside the means of its arm and of its seed, one for all arms; its degrees of freedom.

        Arms far behind the best are left out: their runs nearly diverge, and differ more.
        """
        table = np.array([[*losses.values()] for losses in self.losses[opt, steps].values()])
        table = table[table.mean(1) < table.mean(1).min() + FAR]
        left = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
        freedom = (len(table) - 1) * (table.shape[1] - 1)
        return float((left**2).sum()) / freedom, freedom

    def lead(self, opt: str, steps: int, arm: str, over: str) -> tuple[float, Interval]:
        """Mean loss of `over` minus that of `arm` [nats/byte], paired by seed, with the spread of all arms."""
        arms, (variance, freedom) = self.losses[opt, steps], self.spread(opt, steps)
        mean = fmean(arms[over][seed] - loss for seed, loss in arms[arm].items())
        return mean, student_interval(mean, (2 * variance / len(arms[arm])) ** 0.5, freedom)

    def age(self, opt: str, steps: int) -> tuple[float, np.ndarray]:
        """log2 of the best constant age, from a parabola through five ages around the best; and draws of it."""
        known = self.constants(opt, steps)
        means = np.array([fmean(losses) for losses in known.values()])
        first = min(max(int(means.argmin()) - 2, 0), len(known) - 5)
        x, y = np.log2([*known])[first : first + 5], means[first : first + 5]
        variance, freedom = self.spread(opt, steps)
        noise = (
            np.random.default_rng(0).standard_t(freedom, (DRAWS, 5))
            * (variance / len(next(iter(known.values())))) ** 0.5
        )
        return _bottom(x, y), np.array([_bottom(x, y + each) for each in noise])

    def exponent(self, opt: str) -> tuple[float, Interval]:
        """Of the best constant age in steps."""
        lengths = self.lengths(opt)
        ages, draws = zip(*(self.age(opt, steps) for steps in lengths), strict=True)
        x = np.log2(lengths)
        draws = np.stack([np.random.default_rng(i).permutation(each) for i, each in enumerate(draws)])
        return float(np.polyfit(x, ages, 1)[0]), percentile_interval(np.polyfit(x, draws, 1)[0])

    def seeds(self, opt: str) -> str:
        """How many are compared at each length."""
        counts = [len(next(iter(self.losses[opt, steps].values()))) for steps in self.lengths(opt)]
        return "seeds " + ", ".join(map(str, counts))

    def lengths(self, opt: str) -> list[int]:
        return sorted(steps for name, steps in self.losses if name == opt)


def _bottom(x: np.ndarray, y: np.ndarray) -> float:
    curve, slope, _ = np.polyfit(x, y, 2)
    if curve <= 0:
        return float(x[y.argmin()])
    return float(np.clip(-slope / (2 * curve), x[0], x[-1]))


# ---- the page ----
def shown(lead: tuple[float, Interval]) -> str:
    mean, known = lead
    return f"{mean:+.3f}±{(known.high - known.low) / 2:.3f}"


def ages_table(found: Found) -> Table:
    """Best constant ages and their exponent, beside the predicted ones."""
    lines = []
    for opt, (_, kind, _) in OPTIMIZERS.items():
        lengths = found.lengths(opt)
        if opt == "dana-muon" or len(lengths) < 2:
            continue
        cells = [f"{2.0 ** found.age(opt, steps)[0]:.1f}" if steps in lengths else "-" for steps in LENGTHS]
        mean, known = found.exponent(opt)
        told = "none" if kind == "none" else f"{predicted(kind, LENGTHS[0])['its exponent in steps']:.2f}"
        lines.append([NAMES[opt], *cells, f"{mean:.2f} ({known.low:.2f} to {known.high:.2f})", told])
    return ["optimizer", *(f"{steps:,}" for steps in LENGTHS), "exponent in steps (95%)", "predicted"], lines


def leads_table(found: Found) -> Table:
    """Each arm's lead over the best constant age."""
    opts = ("muon", "adana")
    lines = [
        [ARMS[arm], *(_lead(found, opt, steps, arm, found.best_constant(opt, steps))
                      for opt in opts for steps in LENGTHS)]
        for arm in OTHERS
    ]  # fmt: skip
    heads = [
        f"{NAMES[opt]} {LENGTHS[0]}" if i == 0 else f"{steps:,}" for opt in opts for i, steps in enumerate(LENGTHS)
    ]
    return ["memory", *heads], lines


def _lead(found: Found, opt: str, steps: int, arm: str, over: str) -> str:
    known = arm in found.losses.get((opt, steps), {})
    return shown(found.lead(opt, steps, arm, over)) if known else "-"


def fresh(found: Found) -> str:
    """What log time costs Muon at 1,200 steps, by the share of the new gradient in its update."""
    opts = ("muon", *FRESH)
    best = [found.best_constant(opt, 1200) for opt in opts]
    cost = [found.lead(opt, 1200, "log time", base) for opt, base in zip(opts, best, strict=True)]
    shares = _listed([f"{OPTIMIZERS[opt][2]['fresh']:.0%}" for opt in opts])
    ages, leads = _listed([base.split()[1] for base in best]), _listed([shown(lead) for lead in cost])
    undamped = _lead(found, "root", 1200, "log time", found.best_constant("root", 1200))
    return (
        f"With {shares} the best constant ages at 1,200 steps are {ages}, and logarithmic time's leads {leads}; that "
        f"of ADana with 5%, undamped, is {undamped}.\n"
    )


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}"


def second_table(second: Found) -> Table:
    """On the nanogpt track: leads over the best constant age, of DanaMuon over log time."""
    bases = {opt: second.best_constant(opt, STEPS) for opt in ("muon", "adana")} | {"dana-muon": "log time"}
    lines = []
    for arm, name in {OWN["muon"]: "its own, 19", **ARMS}.items():
        cells = ["-" if arm == base else _lead(second, opt, STEPS, arm, base) for opt, base in bases.items()]
        if set(cells) != {"-"}:
            lines.append([name, *cells])
    return ["memory", *(f"{NAMES[opt]} over {base.removeprefix('constant ')}" for opt, base in bases.items())], lines


def power(found: Found, second: Found) -> str:
    """How many pairs the predicted lead of `follow` over Muon's best constant age needs, and how many there are."""
    losses = [fmean(found.losses["muon", steps][found.best_constant("muon", steps)].values()) for steps in LENGTHS]
    first, last = losses[0] - losses[1], losses[1] - losses[2]
    floor = losses[2] - last / (first / last - 1)  # of the power law through three lengths, each four times the last
    told = [1 - (row := predicted("sign", steps))["follows the rate"] / row["best constant"] for steps in LENGTHS]
    effects = [share * (loss - floor) for share, loss in zip(told, losses, strict=True)]
    pairs = [_pairs(effect, found, steps) for effect, steps in zip(effects, LENGTHS, strict=True)]
    loss = fmean(second.losses["muon", STEPS][second.best_constant("muon", STEPS)].values())
    row = benchmark(NAME)["rows"][0]
    share = (losses[1] - floor) / losses[1]  # of the loss that is excess, taken for that of the second place, too
    effect = (1 - row["follows the rate"] / row["best constant"]) * share * loss
    leads, needed = _listed([f"{each:.3f}" for each in effects]), _listed([*map(str, pairs)])
    return (
        f"For 80% power, the predicted leads of `follow` for Muon, {leads}, need {needed} seeds; on the nanogpt track "
        f"{effect:.3f} needs {_pairs(effect, second, STEPS)}.\n"
    )


def _pairs(effect: float, found: Found, steps: int) -> int:
    return pairs_of_a_t_test(effect / (2 * found.spread("muon", steps)[0]) ** 0.5)


def default_table(found: Found) -> Table:
    """DanaMuon's own memory and beta2, log time, beside others."""
    arms = {"follow": "follow", "beta2 0.95": "beta2 0.95", "beta2 by kind": "beta2 by kind"}
    lines = [[name, *(_lead(found, "dana-muon", steps, arm, "own") for steps in LENGTHS)] for arm, name in arms.items()]
    return ["instead of log time", *(f"{steps:,} steps" for steps in LENGTHS)], lines


def parts(rows: Rows, tracks: Rows) -> dict[str, str]:
    """`tracks`: the rows of the second place."""
    found, second = Found(rows), Found(compared(tracks), second=True)
    told = json.loads(PREDICTIONS.read_text(encoding="utf-8"))["made"]
    cost = sum(row["seconds"] for row in (*rows, *tracks)) / 3600
    counts = sorted({len(next(iter(arms.values()))) for arms in found.losses.values()})
    return {
        "ages": as_markdown(ages_table(found)),
        "leads": as_markdown(leads_table(found)),
        "default": as_markdown(default_table(found)),
        "fresh": fresh(found),
        "second": as_markdown(second_table(second)),
        "cost": f"Predicted {_minute(told)}, first run {_minute(min(row['at'] for row in rows))} (UTC); nanogpt track "
        f"{_minute(benchmark(NAME)['made'])}, {min(row['at'] for row in tracks)[11:16]}. "
        f"{len(rows) + len(tracks)} runs, {cost:.1f} hours of one core, {' or '.join(map(str, counts))} seeds. "
        + power(found, second),
    }


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


# ---- the figure ----
def followed(settings: Mapping[str, Any], steps: int) -> np.ndarray:
    """The mean age at each step of a run [steps]."""
    path, schedule = age_path("figure", settings["age"]), get_schedule("cos", steps, steps // 20, final_div_factor=100)
    ages = [0.0]
    for t in range(1, steps + 1):
        ages.append(path.step(float(t), schedule(t - 1), ages[-1]))
    return np.array(ages[1:])


def draw(rows: Rows) -> None:
    """Age against step for each rule, and what each is worth beside the best constant age."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    found = Found(rows)
    opts = [opt for opt in ("muon", "adana") if found.lengths(opt)]
    figure, axes = plt.subplots(1, 1 + len(opts), figsize=(4.6 * (1 + len(opts)), 3.9), layout="constrained")
    steps = found.lengths("muon")[-1]
    best = found.best_constant("muon", steps)
    for arm in (best, "log time", "follow", "falling", "two"):
        color = COLORS["constant" if arm == best else arm]
        name = {"two": "two buffers", "falling": "falling, one or eight", best: f"best {best}"}.get(arm, arm)
        axes[0].plot(
            range(1, steps + 1), followed(settings_of("muon", arm, steps), steps), color=color, label=name, lw=1.8
        )
    label = "mean age of the momentum [steps]"
    axes[0].set(xlabel="step", ylabel=label, yscale="log", ylim=(1, 2e4))  # room for the legend
    axes[0].set_title(f"Muon, {steps:,} steps", loc="left")
    axes[0].legend(frameon=False, fontsize=8)
    for axis, opt in zip(axes[1:], opts, strict=True):
        for i, arm in enumerate(OTHERS):
            known = [each for each in found.lengths(opt) if arm in found.losses[opt, each]]
            leads = [found.lead(opt, each, arm, found.best_constant(opt, each)) for each in known]
            x = [each * 1.07 ** (i - 2) for each in known]
            half = [(interval.high - interval.low) / 2 for _, interval in leads]
            axis.errorbar(
                x, [mean for mean, _ in leads], yerr=half, fmt="o-", color=COLORS[arm], label=ARMS[arm], ms=4,
                lw=1.4, capsize=2,
            )  # fmt: skip
        axis.axhline(0, color=COLORS["constant"])
        axis.set_xscale("log")
        axis.set_xticks(found.lengths(opt), [f"{each:,}" for each in found.lengths(opt)])
        axis.minorticks_off()
        axis.set(xlabel="steps", ylabel="lead over the best constant age [nats/byte]")
        axis.set_title(NAMES[opt], loc="left")
    axes[-1].legend(frameon=False, fontsize=8)  # the same colours in both
    figure.savefig(FIGURE, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--ladder", type=Path, help="runs of bench/memory_nanogpt.yaml, which are stored first")
    flags = parser.parse_args()
    if flags.predict:
        if PREDICTIONS.exists():
            raise SystemExit(f"{PREDICTIONS} is there: predictions are made once")
        PREDICTIONS.write_text(json.dumps(predict(), indent=1) + "\n", encoding="utf-8")
    if flags.ladder:
        take(flags.ladder)
    stored = read_rows()
    filled = fill_parts(PAGE.read_text(encoding="utf-8"), "memory", parts(stored, read_rows(track=TRACK)))
    PAGE.write_text(filled, encoding="utf-8")
    draw(stored)
    print(f"refreshed {PAGE} and {FIGURE}")
