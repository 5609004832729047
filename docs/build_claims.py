"""Write the table of docs/claims.md: python docs/build_claims.py

Verdicts are computed from stored results: files under bench/results, and tables of horizon.md and findings.md, which
tests hold to the rows there. An interval that contains the claimed value does not contradict the claim, and supports
it only if it excludes the value of no effect.
"""

import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from danalab.ladder.analysis import Analysis, analyse
from danalab.ladder.batch import BatchAnalysis
from danalab.ladder.fit.statistics import Interval, student_interval
from danalab.ladder.horizon.analysis import PairedTest
from danalab.ladder.rows import read_ladder
from danalab_bench.pages import RESULTS, benchmark

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from bench import nanogpt  # noqa: E402

PAGE = ROOT / "docs" / "claims.md"
_TABLE = re.compile(r"(<!-- claims -->\n).*?(<!-- end -->)", re.DOTALL)
LADDER = "45 k to 919 k parameters, f = 1"
HORIZON = "3 k to 10 k parameters, f = 1 to 64"
BATCH = "3 k parameters, f = 8, 2 to 128 sequences of 64 tokens"
SMALL = "3 small problems, 150 to 600 steps"
SAVED = "danalab report bench/results/ladder_cpu --tables-only"
WITHOUT = "45 k to 263 k parameters, f = 1, published rates, decay without a bound"
PUBLISHED = "danalab report bench/results/ladder_cpu_v1 --tables-only"
RATES = "python bench/horizon_rates.py"
EXPONENTS = "danalab report bench/results/horizon_cpu --tables-only"
BATCHES = "danalab report bench/results/batch_cpu --tables-only"
FINDINGS = "python bench/decay_law.py findings family"
WIDTHS = "widths 32 to 256 (58 k to 1.8 M parameters), 300 steps, one seed"
TRANSFER = "python bench/width_transfer.py"
NANOGPT, TWELVE = "0.18 M parameters, 600 steps, three seeds", "python bench/nanogpt.py"
WIDER = "0.65 M parameters, 600 steps, three seeds"
LONGER, MORE_RATES = "0.18 M parameters, 4,800 steps, three seeds", "more rates; longer runs"
IMAGES, TWELVE_IMAGES = "38 k parameters, 150 steps, five seeds", "python bench/images.py"
OTHER = "other networks; longer runs"
MORE = "larger models: an interval on the other side"


@dataclass(frozen=True)
class Claim:
    """A line of the page; without an interval the claim was not tested."""

    text: str
    source: str
    measured: str
    interval: Interval | None
    claimed: float
    """The value that the claim gives, in the interval's unit."""
    none: float
    """The value of no effect."""
    where: str
    change: str
    command: str

    @property
    def verdict(self) -> str:
        """What the interval says of the claim."""
        if self.interval is None:
            return "not tested here"
        inside, excludes = self.claimed in self.interval, self.none not in self.interval
        same_side = (self.interval.low > self.none) == (self.claimed > self.none)
        if self.claimed == self.none:
            return "not contradicted" if inside else "contradicted here"
        if inside:
            return "supported" if excludes else "open: contains the claim and no effect"
        if excludes:
            return "holds in direction, not in size" if same_side else "contradicted here: the opposite"
        return "not shown: contains no effect, not the claim"


def page_table(page: str, name: str) -> list[list[str]]:
    """The rows of a table between `<!-- NAME -->` and `<!-- end -->` of a page of docs/ or its appendix in notes/."""
    places = [ROOT / folder / page for folder in ("docs", "notes")]
    text = "".join(place.read_text(encoding="utf-8") for place in places if place.is_file())
    text = text.partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def interval_of(text: str) -> Interval:
    """The interval in text such as "+4.9% to +34.5%"."""
    low, high = map(float, re.findall(r"[-+]?\d+(?:\.\d+)?", text.replace(",", ""))[-2:])
    return Interval(low, high, 0.95)


@cache
def ladder(convention: str = "exact") -> Analysis:
    """The results of the stored ladder."""
    return analyse(read_ladder(RESULTS / "ladder_cpu"), convention=convention)


def in_percent(interval: Interval | None) -> Interval:
    """An interval of a share [percent]."""
    assert interval is not None
    return Interval(100 * interval.low, 100 * interval.high, interval.level)


def saved(opt: str) -> Interval:
    """Compute saved against AdamW by the ladder's laws [percent]."""
    return in_percent(ladder().gains[opt].interval)


def tokens_saved(opt: str) -> Interval:
    """Tokens saved, or steps: compute without the optimizer's own matrix products [percent]."""
    return in_percent(ladder("model").gains[opt].interval)


def saved_without_bound(opt: str) -> Interval:
    """The same on the ladder with the published rates, and weight decay without a bound."""
    rows = (RESULTS / "ladder_cpu_v1" / "table-saved.md").read_text(encoding="utf-8").splitlines()
    return interval_of(next(row.split("|")[4] for row in rows if row.startswith(f"| {opt} | all, by the laws")))


def unseen(opt: str) -> Interval:
    """How much the law of the horizon lowers the loss at a horizon that it has not seen [nats/token]."""
    return interval_of(next(row[4] for row in page_table("horizon.md", "rates: unseen") if row[0] == opt))


def saved_slope(opt: str) -> Interval:
    """Compute saved per factor of 10 in parameters [points]: a line through all sizes, with their scatter."""
    at = ladder().saved[opt]
    x, y = np.log10(list(at)), np.array([100 * each.saved for each in at.values()])
    (slope, _), covariance = np.polyfit(x, y, 1, cov="unscaled")
    left = y - np.polyval(np.polyfit(x, y, 1), x)
    error = float(np.sqrt(covariance[0, 0] * (left @ left) / (len(x) - 2)))
    return student_interval(float(slope), error, len(x) - 2)


def exponent(opt: str) -> Interval:
    """Equivalent-overtraining exponent p."""
    return interval_of(next(row[2] for row in page_table("horizon.md", "horizon: horizon-exponents") if row[0] == opt))


def rate_exponent(opt: str) -> Interval:
    """Exponent of the best rate over the horizon, of the sizes together."""
    cell = next(row[3] for row in page_table("horizon.md", "rates: exponents") if row[0] == opt)
    return interval_of(cell.partition("(")[2])


@cache
def batch_ladder() -> BatchAnalysis | None:
    """The stored ladder over batches; None where its rows are not stored."""
    folder = RESULTS / "batch_cpu"
    return analyse(read_ladder(folder), n_bootstrap=0).batches if folder.is_dir() else None


def batch_tests(first: str, second: str) -> list[PairedTest]:
    """Tests of two optimizers at each batch, the smallest first; none where the rows are not stored."""
    batches = batch_ladder()
    tests = [] if batches is None else [each for each in batches.tests if (each.first, each.second) == (first, second)]
    return sorted((each for each in tests if each.interval is not None), key=lambda each: each.batch)


def growth(tests: list[PairedTest]) -> Interval | None:
    """Difference of the second optimizer's advantage at the largest batch and at the smallest [nats/token]."""
    if not tests:
        return None
    least, most = tests[0], tests[-1]
    half = sum(((each.interval.high - each.interval.low) / 2) ** 2 for each in (least, most) if each.interval) ** 0.5
    middle = most.difference - least.difference
    return Interval(middle - half, middle + half, 0.95)


def width_exponent(opt: str) -> Interval:
    """Exponent of the best rate over the width."""
    rows = page_table("models.md", "width: transfer")
    return interval_of(next(row[-1] for row in rows if row[0] == opt).partition("(")[2])


def nanogpt_lead(opt: str, baseline: str = "adamw", of: str = "table") -> Interval:
    """How far an optimizer is ahead of another on the small GPT [nats/token]; of "init": with our initial weights."""
    found = nanogpt.leads(read_ladder(nanogpt.results(of)), baseline)[opt].interval
    assert found is not None
    return found


def muon_lead(opt: str) -> Interval:
    """How far an optimizer is ahead of D-Muon on Enoki [nats/token]."""
    return interval_of(next(row[4] for row in page_table("dana-muon.md", "muon-parts: table") if row[0] == opt))


def stored(name: str) -> list[dict[str, Any]]:
    """The rows of a file under bench/results."""
    return [json.loads(line) for line in (RESULTS / name).read_text(encoding="utf-8").splitlines()]


def paired(leads: np.ndarray) -> Interval:
    """Of the mean of differences of one seed each."""
    return student_interval(float(leads.mean()), float(leads.std(ddof=1)) / len(leads) ** 0.5, len(leads) - 1)


def rare_tokens() -> Interval:
    """ADana's lead over AdamW with beta2 .95 on the rarest tokens minus that on the most frequent [nats/token]."""
    losses = {
        opt: np.array([row["loss"] for row in stored("rare_tokens_cpu.jsonl") if row["opt"] == opt])
        for opt in ("adamw-95", "adana")
    }
    leads = losses["adamw-95"] - losses["adana"]
    return paired(leads[:, -1] - leads[:, 0])


def images_lead(opt: str, baseline: str) -> Interval:
    """How far an optimizer is ahead of another on the convolutional network, paired by seed [nats/image]."""
    losses = {row["optimizer"]: np.array(row["losses"]) for row in stored("images_cpu.jsonl")}
    return paired(losses[baseline] - losses[opt])


def cooldown() -> Interval:
    """ADana's loss minus that with momentum cooldown at the longest horizon of the smallest size [nats]."""
    rows = page_table("horizon.md", "horizon: horizon-pairs")
    return interval_of(next(row[4] for row in rows if row[0] == "adana - adana-cooldown"))


def finding(change: str) -> Interval:
    """Loss of a change minus ADana's, over the columns of the first table of findings.md [nats]."""
    row = next(row for row in page_table("findings.md", "decay law: findings") if row[0] == change)
    values = [float(cell.split("±")[0]) for cell in row[1:]]
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    return student_interval(float(np.mean(values)), error, len(values) - 1)


def chat() -> Interval:
    """Correlation of base loss and arithmetic after fine-tuning, over optimizers and seeds (Fisher's z)."""
    rows = [row for row in stored("chat_cpu.jsonl") if "stage" not in row]
    whole = [row for row in rows if row["opt"] == row["sft_opt"] == row["rl_opt"]]  # the others share their bases
    pairs = np.array([(row["base"]["val/loss"], row["sft"]["scores"]["arithmetic"]["mean"]) for row in whole])
    z, half = np.arctanh(np.corrcoef(pairs.T)[0, 1]), 1.96 / (len(pairs) - 3) ** 0.5
    return Interval(float(np.tanh(z - half)), float(np.tanh(z + half)), 0.95)


def own_optimizer_forgets() -> Interval:
    """Loss on the base's text at the end: fine-tuned by the base's optimizer minus by another [nats/token]."""
    rows = page_table("chat-optimizers.md", "chat: effects")
    return interval_of(next(row[3] for row in rows if row[0] == "sft: the base's - another").partition("(")[2])


def resonance() -> Interval:
    """The resonance model's loss minus attention's [nats/token]."""
    return Interval(*benchmark("resonance_wikitext2")["resonance_minus"]["attention"]["interval"], 0.95)


def claims() -> list[Claim]:
    """The lines of the page."""
    nats = "nats/token"
    p = "exponent p"
    fixed, ours, muon = (
        batch_tests(*pair)
        for pair in (("adamw", "adamw-half-life"), ("adamw-half-life", "adana"), ("adamw-half-life", "muon"))
    )
    return [
        Claim(
            "ADana needs up to 40% less compute than tuned AdamW", "arXiv 2602.05298", "% saved", saved("adana"), 40,
            0, LADDER, MORE, SAVED,
        ),
        Claim(
            "orthogonalised matrices with log-time momentum save as much: DanaMuon", "ours", "% saved",
            saved("dana-muon"), 40, 0, LADDER, MORE, SAVED,
        ),
        Claim(
            "Dana-Star-MK4 saves as much", "arXiv 2602.05298", "% saved", saved("dana-star-mk4"), 40, 0, LADDER,
            MORE, SAVED,
        ),
        Claim(
            "ADana's saving grows with size", "arXiv 2602.05298 (a rise of 10 points per decade is taken)",
            "points per decade of size", saved_slope("adana"), 10, 0, LADDER, "sizes over two decades", SAVED,
        ),
        Claim(
            "ADana's gain grows with the horizon, p = 1.15 to 1.20", "arXiv 2609.04577", p, exponent("adana"), 1.15,
            1, HORIZON, "larger models at f = 16 and more", EXPONENTS,
        ),
        Claim(
            "so does Dana-Star-MK4's", "arXiv 2609.04577", p, exponent("dana-star-mk4"), 1.15, 1, HORIZON,
            "more seeds at f = 64", EXPONENTS,
        ),
        Claim(
            "cooling the momentum down lowers ADana's loss (0.02 is taken)", "arXiv 2609.04577", nats, cooldown(),
            0.02, 0, "3 k parameters, f = 64", "20 paired seeds", EXPONENTS,
        ),
        Claim(
            "kappa 0.85 is better than 0.7 (0.01 is taken)", "arXiv 2602.05298", nats, finding("kappa 0.7"), 0.01, 0,
            SMALL, "three seeds on text at several sizes", FINDINGS,
        ),
        Claim(
            "kappa 0.85 is better than 1 (0.01 is taken)", "arXiv 2602.05298", nats, finding("kappa 1.0"), 0.01, 0,
            SMALL, "three seeds on text at several sizes", FINDINGS,
        ),
        Claim(
            "tau (Dana-Star) lowers the loss (0.01 is taken)", "arXiv 2602.05298", nats,
            finding("tau (Dana-Star)"), -0.01, 0, SMALL, "data of rare tokens", FINDINGS,
        ),
        Claim(
            "the clip (MK4) costs nothing", "arXiv 2602.05298", nats,
            finding("clip (Dana-MK4)"), 0, 0, SMALL, "a run where the clip acts", FINDINGS,
        ),
        Claim(
            "a constant beta2 of 0.999 is worse than beta(t) (0.01 is taken)", "arXiv 2602.05298", nats,
            finding("beta2 0.999"), 0.01, 0, SMALL, "long runs", FINDINGS,
        ),
        Claim(
            "short runs need a bound on weight decay (0.02 is taken)", "ours", nats,
            finding("weight decay unbounded"), 0.02, 0, SMALL, "an interval that excludes 0", FINDINGS,
        ),
        Claim(
            "decaying weight decay alone improves AdamW (10% is taken)", "arXiv 2602.05298", "% saved",
            saved_without_bound("adamw-decaying-wd"), 10, 0, WITHOUT, "larger models", PUBLISHED,
        ),
        Claim(
            "the same with the bound", "arXiv 2602.05298", "% saved", saved("adamw-decaying-wd"), 10, 0, LADDER, MORE,
            SAVED,
        ),
        Claim(
            "Muon is 2 x as fast as AdamW", "K. Jordan et al. 2024", "% of tokens saved", tokens_saved("muon"), 50, 0,
            LADDER, MORE, SAVED,
        ),
        Claim(
            "SOAP is 1.4 x as fast as AdamW", "arXiv 2509.02046, at 0.1 B", "% of tokens saved", tokens_saved("soap"),
            29, 0, LADDER,
            MORE, SAVED,
        ),
        Claim(
            "Muon's gain is flat in the horizon", "arXiv 2609.04577", p, exponent("muon"), 1, 1, HORIZON,
            "an interval that excludes 1", EXPONENTS,
        ),
        Claim(
            "SOAP's gain is flat in the horizon", "arXiv 2609.04577", p, exponent("soap"), 1, 1, HORIZON,
            "optima inside the grid at f = 1", EXPONENTS,
        ),
        Claim(
            "AdamW's best rate falls as T^-0.32", "arXiv 2603.28743", "exponent of f", rate_exponent("adamw"), -0.32,
            0, HORIZON, "more seeds", RATES,
        ),
        Claim(
            "so does the rate of every optimizer: Dana-Star-MK4", "arXiv 2603.28743, an open question there",
            "exponent of f", rate_exponent("dana-star-mk4"), -0.32, 0, HORIZON, "more seeds", RATES,
        ),
        Claim(
            "following the law of T lowers AdamW's loss at a horizon not seen before (0.06 was predicted)", "ours",
            nats, unseen("adamw"), 0.06, 0, "3 k parameters, f = 256", "a size whose loss is not yet flat", RATES,
        ),
        Claim(
            "AdamW's beta2 must follow the batch: at the smallest, a constant half-life in tokens is better (0.02 is "
            "taken)", "arXiv 2507.07101", nats, fixed[0].interval if fixed else None, 0.02, 0, BATCH if fixed else "",
            "more seeds at the smallest batch" if fixed else "a ladder over batches", BATCHES if fixed else "",
        ),
        Claim(
            "log-time averages need no change with the batch: ADana's advantage over AdamW with that rule "
            "is the same at all batches", "ours", nats, growth(ours), 0, 0, BATCH if ours else "",
            "ADana's delta tried at each batch" if ours else "a ladder over batches", BATCHES if ours else "",
        ),
        Claim(
            "gaps between optimizers grow with the batch: Muon against AdamW with that rule (0.02 is taken)",
            "arXiv 2507.07101", nats, growth(muon), 0.02, 0, BATCH if muon else "",
            "larger models and batches" if muon else "a ladder over batches", BATCHES if muon else "",
        ),
        *(
            Claim(
                f"{name}'s best rate falls as 1/width in the standard parametrization", "arXiv 2203.03466",
                "exponent of width", width_exponent(opt), -1, 0, WIDTHS, "more seeds, longer runs", TRANSFER,
            )
            for opt, name in (("adamw", "AdamW"), ("adana", "ADana"))
        ),
        *(
            Claim(
                f"{name}'s best rate does not depend on the width with mup", source, "exponent of width",
                width_exponent(f"{opt}-mup"), 0, 0, WIDTHS, "more seeds, longer runs", TRANSFER,
            )
            for opt, name, source in (("adamw", "AdamW", "arXiv 2203.03466"), ("adana", "ADana", "ours"))
        ),
        Claim(
            "orthogonalised matrices are ahead of AdamW on a small GPT: Muon (0.25 is taken)", "ours, tiny Shakespeare",
            nats, nanogpt_lead("muon"), 0.25, 0, NANOGPT, "other initial weights", TWELVE,
        ),
        Claim(
            "the same at 4,800 steps", "ours", nats, nanogpt_lead("muon", of="long"), 0.25, 0, LONGER, MORE_RATES,
            TWELVE,
        ),
        Claim(
            "ADana is level with AdamW on a small GPT", "ours, tiny Shakespeare", nats, nanogpt_lead("adana"), 0, 0,
            NANOGPT, "other initial weights", TWELVE,
        ),
        Claim(
            "the same at 4,800 steps", "ours", nats, nanogpt_lead("adana", of="long"), 0, 0, LONGER, MORE_RATES, TWELVE,
        ),
        Claim(
            "the same at width 128", "ours", nats, nanogpt_lead("adana", of="wide"), 0, 0, WIDER, "other settings",
            TWELVE,
        ),
        Claim(
            "the same, with initial weights scaled by width and depth", "ours, weights of 0.02", nats,
            nanogpt_lead("adana", of="init"), 0, 0, NANOGPT, "4,800 steps; larger models", TWELVE,
        ),
        Claim(
            "log-time momentum before orthogonalisation is ahead of D-Muon (0.03 is taken)", "ours, tiny Shakespeare",
            nats, nanogpt_lead("manau-log", "d-muon"), 0.03, 0, NANOGPT, "more seeds", TWELVE,
        ),
        Claim(
            "the same at width 128", "ours", nats, nanogpt_lead("manau-log", "d-muon", of="wide"), 0.03, 0, WIDER,
            "other settings", TWELVE,
        ),
        Claim(
            "the same at 4,800 steps", "ours", nats, nanogpt_lead("manau-log", "d-muon", of="long"), 0.03, 0,
            LONGER, MORE_RATES, TWELVE,
        ),
        Claim(
            "the same on Enoki: DanaMuon", "ours", nats, muon_lead("dana-muon"), 0.03, 0, "105 k parameters, f = 1",
            "three seeds at larger sizes", "python bench/muon_parts.py",
        ),
        Claim(
            "log-time momentum before orthogonalisation is ahead of constant momentum with the same rule for the rest "
            "(Manau), 4,800 steps of a small GPT (0.03 is taken)", "ours", nats,
            nanogpt_lead("manau-log", "manau", of="long"), 0.03, 0, LONGER, MORE_RATES, TWELVE,
        ),
        Claim(
            "log-time momentum before orthogonalisation is ahead of D-Muon on images (0.03 is taken)",
            "ours, tiny Shakespeare", "nats/image", images_lead("dana-muon", "d-muon"), 0.03, 0,
            IMAGES, OTHER, TWELVE_IMAGES,
        ),
        Claim(
            "ADana is level with AdamW on images", "our small GPT", "nats/image", images_lead("adana", "adamw"), 0, 0,
            IMAGES, OTHER, TWELVE_IMAGES,
        ),
        Claim(
            "long averages help rare tokens: ADana's lead over AdamW with beta2 .95 is larger on the rarest "
            "(by 0.1 is taken)", "ours, by the theory of rare tokens", nats, rare_tokens(), 0.1, 0,
            "0.25 M parameters, f = 0.3, three seeds", "larger vocabularies", "python bench/rare_tokens.py",
        ),
        Claim(
            "a better base makes a better chat: base loss and arithmetic after fine-tuning correlate (-0.8 is taken)",
            "folklore", "correlation", chat(), -0.8, 0, "1.2 M parameters, 12 runs", "more bases of one optimizer",
            "python bench/chat.py",
        ),
        Claim(
            "fine-tuning by the base's own optimizer forgets less (0.3 less is taken)", "two papers of 2026", nats,
            own_optimizer_forgets(), -0.3, 0, "1.2 M parameters, 27 choices, three seeds", "more seeds",
            "python bench/chat.py --opts adamw adana muon --cross",
        ),
        Claim(
            "resonance is level with attention", "the original's documents", nats, resonance(), 0, 0,
            "1.2 M parameters, 400 steps", "long contexts; longer runs", "python bench/resonance_wikitext2.py",
        ),
        Claim("bf16 training equals fp32 in loss", "folklore", "", None, 0, 0, "", "three paired seeds on a GPU", ""),
    ]  # fmt: skip


def table() -> str:
    """The page's table."""
    lines = [
        "| claim | source | verdict | 95% interval | size and horizon | what would change our mind | repeat it |",
        "|" + " --- |" * 7,
    ]
    for each in claims():
        span = "-" if each.interval is None else f"{each.interval.low:.3g} to {each.interval.high:.3g} {each.measured}"
        lines.append(
            f"| {each.text} | {each.source} | **{each.verdict}** | {span} | {each.where or '-'} | {each.change} | "
            + (f"`{each.command}` |" if each.command else "- |")
        )
    return "\n".join(lines) + "\n"


def fill(page: str) -> str:
    """The page with its table made anew."""
    return _TABLE.sub(lambda match: match[1] + table() + match[2], page)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
