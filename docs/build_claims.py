"""Write the lists of docs/claims.md: python docs/build_claims.py

Verdicts, numbers, sizes, seeds and epochs are computed from stored results: files under bench/results, and tables of
pages, which tests hold to the rows there.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import _tooling  # noqa: F401 (makes danalab_bench importable)
from danalab.judge.tracks import get_track
from danalab.ladder.analysis import Analysis, analyse
from danalab.ladder.fit.statistics import Interval, Variance, student_interval, sum_interval
from danalab.ladder.fit.tuning import Tuned, tune
from danalab.ladder.rows import read_ladder
from danalab.report.formats import as_markdown, short
from danalab.sweep.rows import is_usable
from danalab.ladder.paired import PairedTest, paired_runs, paired_tests
from danalab_bench.pages import RESULTS, benchmark, fill_parts, page_table
from memory import PARAMETERS, TRACK, Found, compared, read_rows

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "claims.md", ROOT / "notes" / "claims.md")
REPORT = "danalab report bench/results/{} --tables-only"
RATES, FINDINGS = "python bench/horizon_rates.py", "python bench/decay_law.py findings family"
TRANSFER, GPT, IMAGES = "python bench/width_transfer.py", "python bench/nanogpt.py", "python bench/images.py"
MEMORY, MEMORY_GPT = "python bench/memory_runs.py --run", "danalab ladder bench/memory_nanogpt.yaml"
LARGER, LONGER = "larger models: an interval on the other side", "longer runs"
NATS, SAVED, TOKENS, P = "nats/token", "% of compute", "% of tokens", "exponent"


@dataclass(frozen=True)
class Measure:
    """What was measured, and of which runs."""

    interval: Interval | None
    """None: nothing was."""
    unit: str = ""
    where: str = ""


@dataclass(frozen=True)
class Claim:
    """A line of the page."""

    key: str
    text: str
    """What a reader hopes; `[x]` is the value that it is tested against where its source gives none."""
    source: str
    measure: Measure
    claimed: float
    """The value that the claim gives, in the interval's unit."""
    change: str
    """What would change the verdict."""
    command: str
    none: float = 0.0
    """The value of no effect."""
    signs: tuple[str, str] = ("it falls", "it rises")
    """Of a claim of no effect: the effect, where the interval lies below, or above."""

    @property
    def verdict(self) -> str:
        """What the interval says of the claim."""
        known = self.measure.interval
        if known is None:
            return "not tested"
        beyond = known.excludes(self.none)
        above, below = beyond and known.low > self.none, beyond and known.high < self.none
        if self.claimed == self.none:
            return self.signs[above] if above or below else "consistent with no difference"
        inside = self.claimed in known
        if not (above or below):
            return "undecided" if inside else "no effect found"
        if inside:
            return "confirmed"
        if above != (self.claimed > self.none):
            return "the opposite"
        return f"confirmed, {'larger' if above == (known.low > self.claimed) else 'smaller'}"

    @property
    def span(self) -> str:
        """The interval, with two digits of its width."""
        known = self.measure.interval
        if known is None:
            return "-"
        form = f".{max(0, -round(math.log10(known.last_digit)))}f"
        return f"{known.low:{form}} to {known.high:{form}}"


def row_named(page: str, name: str, first: str) -> list[str]:
    """The line of a page's table whose first cell is `first`."""
    return next(row for row in page_table(page, name) if row[0] == first)


def interval_of(text: str) -> Interval:
    """The interval in text such as "+4.9% to +34.5%"."""
    low, high = map(float, re.findall(r"[-+]?\d+(?:\.\d+)?", text.replace(",", ""))[-2:])
    return Interval(low, high, 0.95)


@cache
def tuned(folder: str) -> list[Tuned]:
    """The tuned runs of a stored ladder."""
    return tune([row for row in read_ladder(RESULTS / folder) if is_usable(row)], "model")


@cache
def ladder(convention: str = "exact") -> Analysis:
    """The results of the stored ladder."""
    return analyse(read_ladder(RESULTS / "ladder_cpu"), convention=convention)


def span_of(values: Iterable[float], form: str) -> str:
    """Their range."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(f"{value:{form}}" for value in (ordered[0], ordered[-1])))


def rounded(value: float) -> float:
    """To three digits."""
    return float(f"{value:.3g}")


def where(folder: str, *opts: str, every: bool = False) -> str:
    """Sizes, lengths, seeds and epochs of the tuned runs of some optimizers; `every`: of all sizes that all have."""
    mine = [each for each in tuned(folder) if each.opt in opts]
    common = set.intersection(*({each.params for each in mine if each.opt == opt} for opt in opts))
    runs = [row for each in mine if each.params in common for row in each.runs]
    if not every:
        most = max(row["tokens"] / row["total_params"] for row in runs)
        runs = [row for row in runs if row["tokens"] / row["total_params"] > 0.9 * most]
    sizes = sorted({row["params"] for row in runs})
    seeds = [len({row["seed"] for row in each.runs}) for each in mine if each.params in common]
    words = [
        f"{' to '.join(dict.fromkeys(short(size) for size in (sizes[0], sizes[-1])))} parameters",
        f"{span_of((row['settings']['iterations'] for row in runs), ',')} steps",
        f"{span_of((rounded(row['tokens'] / row['total_params']) for row in runs), ',g')} tokens per parameter",
        f"seeds {span_of(seeds, 'd')}",
    ]
    if known := [row["tokens"] / row["data_tokens"] for row in runs if row.get("data_tokens")]:
        words.append(f"epochs {span_of(known, '.2g')}")
    return ", ".join(words)


def saved(opt: str, convention: str = "exact") -> Measure:
    """Compute, or tokens (without the optimizer's own products), saved against AdamW by the ladder's laws."""
    interval = ladder(convention).gains[opt].interval
    assert interval is not None
    unit = SAVED if convention == "exact" else TOKENS
    return Measure(Interval(100 * interval.low, 100 * interval.high, 0.95), unit, where("ladder_cpu", opt, every=True))


def saved_without_bound(opt: str) -> Measure:
    """The same on the ladder with the published rates, and weight decay without a bound."""
    rows = (RESULTS / "ladder_cpu_v1" / "table-saved.md").read_text(encoding="utf-8").splitlines()
    text = next(row.split("|")[4] for row in rows if row.startswith(f"| {opt} | all, by the laws"))
    return Measure(interval_of(text), SAVED, f"{where('ladder_cpu_v1', opt, every=True)}, published rates")


def saved_slope(opt: str) -> Measure:
    """Tokens saved per factor of 10 in parameters: a line through all sizes, with their scatter."""
    at = ladder("model").saved[opt]
    x, y = np.log10(list(at)), np.array([100 * each.saved for each in at.values()])
    (slope, level), covariance = np.polyfit(x, y, 1, cov="unscaled")
    left = y - (slope * x + level)
    error = float(np.sqrt(covariance[0, 0] * (left @ left) / (len(x) - 2)))
    known = student_interval(float(slope), error, len(x) - 2)
    return Measure(known, "points per factor of 10 in size", where("ladder_cpu", opt, every=True))


def exponent(opt: str) -> Measure:
    """Exponent of the training length at which AdamW is as good."""
    interval = interval_of(row_named("horizon.md", "horizon: horizon-exponents", opt)[2])
    return Measure(interval, P, where("horizon_cpu", opt, every=True))


def rate_exponent(opt: str) -> Measure:
    """Exponent of the best rate over the training length, of the sizes together."""
    cell = row_named("horizon.md", "rates: exponents", opt)[3]
    return Measure(interval_of(cell.partition("(")[2]), P, where("horizon_cpu", opt, every=True))


def width_exponent(opt: str) -> Measure:
    """Exponent of the best rate over the width."""
    cell = row_named("models.md", "width: transfer", opt)[-1]
    return Measure(interval_of(cell.partition("(")[2]), P, where("width_cpu", opt, every=True))


@cache
def tests(folder: str, baseline: str) -> list[PairedTest]:
    """All paired tests of a stored ladder."""
    return paired_tests(paired_runs(tuned(folder), baseline))


def lead(folder: str, opt: str, baseline: str = "adamw") -> Measure:
    """How much lower an optimizer's loss is than another's, paired by seed; at the longest training."""
    mine = [test for test in tests(folder, baseline) if (test.first, test.second) == (baseline, opt)]
    return Measure(max(mine, key=lambda test: test.horizon).interval, NATS, where(folder, opt, baseline))


def lead_on_gpt(opt: str, baseline: str = "adamw", of: str = "") -> Measure:
    """The same on the small GPT, with the steps of its warm-up."""
    folder = f"nanogpt_{of}cpu"
    found = lead(folder, opt, baseline)
    warm = {row["settings"]["warmup_steps"] for each in tuned(folder) for row in each.runs if each.opt == baseline}
    return Measure(found.interval, NATS, f"{found.where}, warm-up {span_of(warm, 'd')}")


def over_long(control: str, folder: str) -> Measure:
    """ADana's lead over the best AdamW of those with long constant averages, at their size."""
    long = tuned(control)
    best = min(long, key=lambda each: each.loss)
    adana = [each for each in tuned(folder) if each.opt == "adana" and each.params == best.params]
    (test,) = paired_tests(paired_runs([best, *adana], best.opt))
    return Measure(test.interval, NATS, f"{where(control, best.opt)}, {best.opt}")


def on_batches(first: str, second: str, *, growth: bool) -> Measure:
    """The second optimizer's lead at the smallest batch, or `growth`: at the largest minus that."""
    mine = [test for test in tests("batch_cpu", "adamw") if (test.first, test.second) == (first, second)]
    least, most = min(mine, key=lambda test: test.batch), max(mine, key=lambda test: test.batch)
    of = f"{where('batch_cpu', first, second)}, batch {least.batch}"
    if not growth:
        return Measure(least.interval, NATS, of)
    parts = []
    for test in (least, most):
        known, quantile = test.interval, student_interval(0, 1, test.n_seeds - 1).high
        assert known is not None
        parts.append(Variance(((known.high - known.low) / 2 / quantile) ** 2, test.n_seeds - 1))
    return Measure(sum_interval(most.difference - least.difference, parts), NATS, f"{of} to {most.batch}")


def lead_on_enoki(opt: str) -> Measure:
    """How much lower an optimizer's loss is than D-Muon's on Enoki."""
    interval = interval_of(row_named("dana-muon.md", "muon-parts: table", opt)[4])
    return Measure(interval, NATS, where("muon_forms_cpu", "d-muon"))


def stored(name: str) -> list[dict[str, Any]]:
    """The rows of a file under bench/results."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def paired(leads: np.ndarray) -> Interval:
    """Of the mean of differences of one seed each."""
    return student_interval(float(leads.mean()), float(leads.std(ddof=1)) / len(leads) ** 0.5, len(leads) - 1)


def rare_tokens() -> Measure:
    """ADana's lead over AdamW with beta2 .95 on the rarest tokens minus that on the most frequent."""
    rows = [row for row in stored("rare_tokens_cpu.jsonl") if row["opt"] in ("adamw-95", "adana")]
    losses = {opt: np.array([row["loss"] for row in rows if row["opt"] == opt]) for opt in ("adamw-95", "adana")}
    leads = losses["adamw-95"] - losses["adana"]
    sizes = [re.findall(r"-d(\d+)-.*-f([\d.]+)-", row["name"])[0] for row in rows]
    length = span_of((20 * float(f) for _, f in sizes), ".3g")
    of = f"width {sizes[0][0]}, {length} tokens per parameter, seeds {len(leads)}"
    return Measure(paired(leads[:, -1] - leads[:, 0]), NATS, of)


def lead_on_images(opt: str, baseline: str = "adamw") -> Measure:
    """How much lower an optimizer's loss is than another's on the convolutional network, paired by seed."""
    rows = {row["optimizer"]: row for row in stored("images_cpu.jsonl")}
    losses = [np.array(rows[name]["losses"]) for name in (baseline, opt)]
    params = sum(weight.numel() for weight in get_track("images").make(0).model.parameters())
    of = f"convolutions, {short(params)} parameters, {rows[opt]['steps']} steps, seeds {len(losses[0])}"
    return Measure(paired(losses[0] - losses[1]), "nats/image", of)


def finding(change: str) -> Measure:
    """Loss of a change minus ADana's, over the columns of the first table of findings.md; None: it never acted."""
    cells = [cell.split("±") for cell in row_named("findings.md", "decay law: findings", change)[1:]]
    values = np.array([float(value) for value, _ in cells])
    runs = [row for row in stored("decay_law_cpu.jsonl") if row.get("settings") == "kappa=1.0"]
    problems = {(row["problem"], row["steps"]) for row in runs}
    assert len(problems) == len(values)
    of = f"{len(values)} small problems, {span_of((steps for _, steps in problems), ',')} steps, "
    of += f"seeds {len({row['seed'] for row in runs})}"
    return Measure(paired(values), "nats", of) if values.any() else Measure(None, "", of)


def chat() -> Measure:
    """Correlation of base loss and arithmetic after fine-tuning, over optimizers and seeds (Fisher's z)."""
    rows = [row for row in stored("chat_cpu.jsonl") if "stage" not in row]
    whole = [row for row in rows if row["opt"] == row["sft_opt"] == row["rl_opt"]]  # the others share their bases
    pairs = np.array([(row["base"]["val/loss"], row["sft"]["scores"]["arithmetic"]["mean"]) for row in whole])
    z, half = np.arctanh(np.corrcoef(pairs.T)[0, 1]), 1.96 / (len(pairs) - 3) ** 0.5
    of = f"{short(whole[0]['base']['params'])} parameters, {len(whole)} speedruns"
    return Measure(Interval(float(np.tanh(z - half)), float(np.tanh(z + half)), 0.95), "correlation", of)


def own_optimizer_forgets() -> Measure:
    """Loss on the base's text at the end: fine-tuned by the base's optimizer minus by another."""
    row = row_named("chat-optimizers.md", "chat: effects", "sft: the base's - another")
    params = short(stored("chat_cpu.jsonl")[0]["base"]["params"])
    of = f"{params} parameters, {row[1]} choices of optimizers, seeds {row[2]}"
    return Measure(interval_of(row[3].partition("(")[2]), NATS, of)


def resonance() -> Measure:
    """The resonance model's loss minus attention's."""
    found = benchmark("resonance_wikitext2")
    runs = found["models"]["resonance"]
    of = f"{short(runs['params'])} parameters, {found['settings']['steps']} steps, seeds {len(runs['runs'])}"
    low, high = found["resonance_minus"]["attention"]["interval"]
    return Measure(Interval(low, high, 0.95), NATS, of)


def memory(opt: str, arm: str = "", track: str | None = None) -> Measure:
    """An arm's lead over the best constant age at the longest length, or the exponent of that age in steps."""
    rows = read_rows(track=track)
    found = Found(compared(rows), second=True) if track else Found(rows)
    lengths = [steps for steps in found.lengths(opt) if not arm or arm in found.losses[opt, steps]]
    last = lengths[-1]
    own = found.lead(opt, last, arm, found.best_constant(opt, last)) if arm else found.exponent(opt)
    steps = f"{last:,}" if arm else f"{lengths[0]:,} to {last:,}"
    size = read_ladder(RESULTS / "nanogpt_cpu")[0]["params"] if track else PARAMETERS
    return Measure(own[1], "nats/byte" if arm else P, f"{short(size)} parameters, {steps} steps, {found.seeds(opt)}")


PAPER, HORIZONS, BATCHES, MUP, OURS = (
    "arXiv 2602.05298", "arXiv 2609.04577", "arXiv 2507.07101", "arXiv 2203.03466", "ours",
)  # fmt: skip
LADDER, HORIZON, BATCH = (REPORT.format(name) for name in ("ladder_cpu", "horizon_cpu", "batch_cpu"))


@cache
def claims() -> dict[str, Claim]:
    """The lines of the page, by their keys."""
    half_life = ("adamw", "adamw-half-life")
    lines = [
        ("adana", "ADana needs 40% less compute than tuned AdamW", PAPER, saved("adana"), 40, LARGER, LADDER),
        ("dana-muon", "DanaMuon needs 40% less compute than AdamW", OURS, saved("dana-muon"), 40, LARGER, LADDER),
        ("dana-muon-t", "DanaMuon needs 40% fewer tokens", OURS, saved("dana-muon", "model"), 40, LARGER, LADDER),
        ("star", "Dana-Star-MK4 needs 40% less compute", PAPER, saved("dana-star-mk4"), 40, LARGER, LADDER),
        ("grows", "ADana's saving grows with size [10 points]", PAPER, saved_slope("adana"), 10,
         "sizes over two factors of 10", LADDER),
        ("length", "ADana's advantage grows with training length: AdamW needs length^1.15", HORIZONS,
         exponent("adana"), 1.15, "larger models at 320 tokens per parameter", HORIZON, 1),
        ("length-star", "so does Dana-Star-MK4's", HORIZONS, exponent("dana-star-mk4"), 1.15, "more seeds", HORIZON, 1),
        ("cooldown", "momentum cooldown lowers ADana's loss [0.02]", HORIZONS, lead("horizon_cpu", "adana-cooldown",
         "adana"), 0.02, "20 paired seeds", HORIZON),
        ("kappa-low", "kappa 0.85 is better than 0.7 [0.01]", PAPER, finding("kappa 0.7"), 0.01, "text, several sizes",
         FINDINGS),
        ("kappa-high", "kappa 0.85 is better than 1 [0.01]", PAPER, finding("kappa 1.0"), 0.01, "text, several sizes",
         FINDINGS),
        ("tau", "tau (Dana-Star) lowers the loss [-0.01]", PAPER, finding("tau (Dana-Star)"), -0.01,
         "data of rare tokens", FINDINGS),
        ("clip", "the clip (MK4) costs nothing", PAPER, finding("clip (Dana-MK4)"), 0, "a run where the clip acts",
         FINDINGS),
        ("beta2", "beta2 that grows is better than 0.999 [0.01]", PAPER, finding("beta2 0.999"), 0.01, "long runs",
         FINDINGS),
        ("bound", "a bound on weight decay helps short runs [0.02]", OURS, finding("weight decay unbounded"), 0.02,
         "an interval without 0", FINDINGS),
        ("decay-v1", "decaying weight decay improves AdamW [10%]", PAPER, saved_without_bound("adamw-decaying-wd"), 10,
         "larger models", REPORT.format("ladder_cpu_v1")),
        ("decay", "the same with a bound on it", PAPER, saved("adamw-decaying-wd"), 10, LARGER, LADDER),
        ("muon-t", "Muon halves AdamW's tokens", "K. Jordan et al. 2024", saved("muon", "model"), 50, LARGER, LADDER),
        ("muon", "Muon needs less compute than AdamW [10%]", OURS, saved("muon"), 10, "larger batches", LADDER),
        ("soap-t", "SOAP is 1.4 x as fast as AdamW in tokens", "arXiv 2509.02046, at 0.1 B", saved("soap", "model"), 29,
         LARGER, LADDER),
        ("soap", "SOAP needs less compute than AdamW [29%]", OURS, saved("soap"), 29, "larger batches", LADDER),
        ("flat-muon", "Muon's advantage is the same at every training length", HORIZONS, exponent("muon"), 1,
         "an interval without 1", HORIZON, 1),
        ("flat-soap", "SOAP's advantage is the same at every training length", HORIZONS, exponent("soap"), 1,
         "optima inside the grid of the shortest", HORIZON, 1),
        ("rate", "AdamW's best rate falls as length^-0.32", "arXiv 2603.28743", rate_exponent("adamw"), -0.32,
         "more seeds", RATES),
        ("rate-star", "so does Dana-Star-MK4's", "arXiv 2603.28743", rate_exponent("dana-star-mk4"), -0.32,
         "more seeds", RATES),
        ("unseen", "this law lowers AdamW's loss at a length not seen before [0.06]", OURS,
         lead("horizon_256_cpu", "adamw-law", "adamw-none"), 0.06, "a size whose loss is not yet flat", RATES),
        ("half-life", "at a small batch AdamW needs beta2 by a half-life in tokens [0.02]", BATCHES,
         on_batches(*half_life, growth=False), 0.02, "more seeds", BATCH),
        ("adana-batch", "ADana's advantage over that is the same at every batch", OURS,
         on_batches(half_life[1], "adana", growth=True), 0, "delta tried at each batch", BATCH),
        ("muon-batch", "Muon's advantage grows with the batch [0.02]", BATCHES,
         on_batches(half_life[1], "muon", growth=True), 0.02, "larger models and batches", BATCH),
        *((f"width-{opt}", f"{name}'s best rate falls as 1/width", MUP, width_exponent(opt), -1, "more seeds", TRANSFER)
          for opt, name in (("adamw", "AdamW"), ("adana", "ADana"))),
        *((f"mup-{opt}", f"with mup {name}'s best rate is the same at every width", MUP, width_exponent(f"{opt}-mup"),
           0, "more seeds", TRANSFER) for opt, name in (("adamw", "AdamW"), ("adana", "ADana"))),
        ("gpt-muon", "Muon beats AdamW on a small GPT [0.25]", OURS, lead_on_gpt("muon"), 0.25, "more seeds", GPT),
        ("gpt-muon-long", "the same, longer", OURS, lead_on_gpt("muon", of="long_"), 0.25, "more rates", GPT),
        ("gpt", "ADana beats AdamW on a small GPT [0.05]", OURS, lead_on_gpt("adana"), 0.05, "more seeds", GPT),
        ("gpt-long", "the same, longer", OURS, lead_on_gpt("adana", of="long_"), 0.05, "more rates", GPT),
        ("gpt-wide", "the same, wider", OURS, lead_on_gpt("adana", of="wide_"), 0.05, "more seeds", GPT),
        ("long-gpt", "ADana beats AdamW of long constant averages on a small GPT [0.05]", OURS,
         over_long("nanogpt_adamw_long_cpu", "nanogpt_cpu"), 0.05, "more values of both betas", GPT),
        ("long-enoki", "the same, on Enoki", OURS, over_long("adamw_long_cpu", "ladder_cpu"), 0.05,
         "more values of both betas", GPT),
        ("gpt-shakespeare", "ADana beats AdamW on nanoGPT's Shakespeare [0.05]", OURS,
         lead_on_gpt("adana", of="shakespeare_"), 0.05, "dropout, more steps", GPT),
        ("dana-gpt", "DanaMuon, with rates by kind, beats D-Muon on a small GPT [0.03]", OURS,
         lead_on_gpt("dana-muon", "d-muon"), 0.03, "rates by kind for D-Muon", GPT),
        ("dana-wide", "the same, wider", OURS, lead_on_gpt("dana-muon", "d-muon", "wide_"), 0.03,
         "rates by kind for D-Muon", GPT),
        ("log-long", "log-time momentum improves Muon on a small GPT (D-Muon) [0.03]", OURS,
         lead_on_gpt("manau-log", "d-muon", "long_"), 0.03, "more rates", GPT),
        ("log-manau", "the same against Manau", OURS, lead_on_gpt("manau-log", "manau", "long_"), 0.03,
         "more rates", GPT),
        ("log-enoki", "log-time momentum improves Muon on Enoki [0.03]", OURS, lead_on_enoki("dana-muon"), 0.03,
         "three seeds at larger sizes", "python bench/muon_parts.py"),
        ("log-images", "log-time momentum improves D-Muon on images [0.03]", OURS,
         lead_on_images("dana-muon", "d-muon"), 0.03, "other networks", IMAGES),
        ("images", "ADana beats AdamW on images [0.02]", OURS, lead_on_images("adana"), 0.02, "other networks", IMAGES),
        ("rare", "long averages help rare tokens more than frequent ones [0.1]", OURS, rare_tokens(), 0.1,
         "larger vocabularies", "python bench/rare_tokens.py"),
        ("chat", "a better base makes a better chat [correlation -0.8]", "folklore", chat(), -0.8,
         "more bases of one optimizer", "python bench/chat.py"),
        ("forgets", "fine-tuning by the base's own optimizer forgets less [-0.3]", "two papers of 2026",
         own_optimizer_forgets(), -0.3, "more seeds", "python bench/chat.py --opts adamw adana muon --cross"),
        ("age", "Muon's best constant memory grows like length^0.43, as predicted", OURS, memory("muon"), 0.43, LONGER,
         MEMORY),
        *((f"age-{arm}", text, OURS, memory("muon", arm), 0.02, LONGER, MEMORY) for arm, text in (
            ("follow", "a memory that grows as the rate falls is better for Muon than the best constant one [0.02]"),
            ("eight", "so are eight averages whose age falls [0.02]"))),
        ("age-adana", "log time is better for ADana than the best constant memory [0.02]", OURS,
         memory("adana", "log time"), 0.02, LONGER, MEMORY),
        ("age-share", "log time costs Muon nothing where the new gradient's share is 30%", OURS,
         memory("muon fresh 0.3", "log time"), 0, LONGER, MEMORY, 0, ("it costs", "it gains")),
        *((f"age-gpt-{arm}", text, OURS, memory("muon", arm, TRACK), 0.02, "more seeds", MEMORY_GPT) for arm, text in (
            ("follow", "follow, as predicted, is better for Muon on a small GPT than the best constant memory [0.02]"),
            ("two", "so are two averages [0.02]"))),
        ("resonance", "resonance reaches attention's loss", "the published code", resonance(), 0, "long contexts",
         "python bench/resonance_wikitext2.py", 0, ("its loss is lower", "its loss is higher")),
        ("bf16", "bf16 training ends at fp32's loss", "folklore", Measure(None), 0, "three paired seeds on a GPU", ""),
    ]  # fmt: skip
    return {line[0]: Claim(*line) for line in lines}


TEN = (
    "{adana}: **ADana needs less compute than tuned AdamW.** It saves {adana.span}% ({adana.where}). "
    "The paper's 40% is at 2.6 B.",
    "{dana-muon}: **DanaMuon needs less compute than AdamW.** It saves {dana-muon.span}% with its own matrix products "
    "counted, {dana-muon-t.span}% of the tokens: at larger batches the products weigh less.",
    "{soap} (SOAP), {muon} (Muon): **SOAP and Muon need less compute than AdamW.** Of tokens they save {soap-t.span}% "
    "and {muon-t.span}%; of compute, at these small batches, {soap.span}% and {muon.span}% ({soap.where}).",
    "{grows}: **ADana's saving grows with size.** By {grows.span} points per factor of 10.",
    "{length}: **ADana's advantage grows with training length.** AdamW needs length^p for the same loss, "
    "p = {length.span} ({length.where}).",
    "{gpt-long}: **ADana beats AdamW on a small GPT.** By {gpt-long.span} nats/token, Muon by {gpt-muon-long.span} "
    "({gpt-long.where}). At 600 steps by {gpt.span}; twice as wide {gpt-wide}, {gpt-wide.span}; on nanoGPT's "
    "Shakespeare by {gpt-shakespeare.span}. Of AdamW with long constant averages it is ahead by {long-gpt.span}, on "
    "Enoki by {long-enoki.span}.",
    "{log-enoki} (Enoki), {log-images} (images), {log-manau} (a GPT): **log-time momentum improves Muon.** By "
    "{log-enoki.span}, {log-images.span} and {log-manau.span} nats. On the small GPT DanaMuon is ahead of D-Muon by "
    "{dana-gpt.span}, but its rates by kind count, too.",
    "{decay} (with a bound on it), {decay-v1} (without): **decaying weight decay alone improves AdamW.** It saves "
    "{decay.span}% of compute, and {decay-v1.span}%.",
    "{adana-batch}: **ADana needs no other settings at other batches.** From the smallest to the largest batch its "
    "lead changes by {adana-batch.span} nats/token.",
    "{mup-adana}: **mup carries ADana's best rate over widths.** Its exponent is {mup-adana.span} ({mup-adana.where}).",
)
"""The claims in plain words: {key} is a verdict, {key.span} an interval, {key.where} its runs."""


def ten() -> str:
    """The list on top of the page."""
    known = claims()
    lines = []
    for number, text in enumerate(TEN, start=1):
        filled = re.sub(r"\{([\w-]+)\.span\}", lambda match: known[match[1]].span, text)
        filled = re.sub(r"\{([\w-]+)\.where\}", lambda match: known[match[1]].measure.where, filled)
        lines.append(f"{number}. " + re.sub(r"\{([\w-]+)\}", lambda match: f"*{known[match[1]].verdict}*", filled))
    return "\n".join(lines) + "\n"


def table() -> str:
    """The appendix's table."""
    lines = []
    for each in claims().values():
        command = f"`{each.command}`" if each.command else "-"
        of, span = each.measure.where or "-", f"{each.span} {each.measure.unit}".strip()
        lines.append((each.text, each.source, f"**{each.verdict}**", span, of, each.change, command))
    head = "claim [tested against]", "source", "verdict", "95% interval", "of", "what would change it", "repeat it"
    return as_markdown((head, lines))


def fill(page: str) -> str:
    """The page with its lists made again."""
    return fill_parts(page, "claims", {"ten": ten(), "all": table()})


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
