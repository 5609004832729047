"""The report card of a speedrun: report.md and report.html with scores, curves, samples, stages and costs."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.files import write_atomically
from danalab.post.settings import STAGES
from danalab.post.speedrun.pipeline import MeanScore, Speedrun, stage_facts
from danalab.report.figures.drawing import LOSS, panels, styled
from danalab.report.formats import Table, as_markdown
from danalab.report.page import Page
from danalab.train.config.fields import flag
from danalab.train.run.open import open_run

TITLES = {"base": "base", "mid": "mid-training", "sft": "fine-tuning", "rl": "reinforcement learning"}
REWARD = "rl/reward"  # the metric of reinforcement learning that is drawn
SAMPLES = 2  # questions of each task whose answers are shown
LONGEST = 140  # characters of an answer that are shown
FEW = 8  # curves of so few points have a mark at each


def write_report(speedrun: Speedrun) -> tuple[Path, Path]:
    """Write report.md and report.html into the speedrun's folder; returns their paths."""
    facts = {stage: stage_facts(speedrun.folder(stage)) for stage in STAGES}
    lead = _lead(speedrun, facts)
    scores, stages = scores_table(speedrun), _stage_table(speedrun, facts)
    tables = {"Scores": scores, "Stages": stages, "Environment": _environment(speedrun)}
    markdown, html = speedrun.out / "report.md", speedrun.out / "report.html"
    write_atomically(markdown, _markdown(speedrun, lead, tables))
    write_atomically(html, _page(speedrun, lead, tables, facts))
    return markdown, html


def scores_table(speedrun: Speedrun) -> Table:
    """Score of each task after each stage, in percent with its standard error."""
    by_stage = {stage: {task["task"]: task["score"] for task in speedrun.scores(stage).tasks} for stage in STAGES}
    rows = [[name, *(_percent(by_stage[stage][name]) for stage in STAGES)] for name in by_stage["base"]]
    return ["task", *STAGES], rows


def as_json(speedrun: Speedrun) -> dict[str, Any]:
    """Scores and facts of all stages."""
    return {
        stage: {"run": str(speedrun.folder(stage)), **stage_facts(speedrun.folder(stage)),
                "scores": {task["task"]: task["score"] for task in speedrun.scores(stage).tasks}}
        for stage in STAGES
    }  # fmt: skip


def _percent(score: MeanScore) -> str:
    error = "" if score["error"] is None else f" ± {100 * score['error']:.1f}"
    return f"{100 * score['mean']:.1f}{error}"


def _means(speedrun: Speedrun, stage: str) -> dict[str, float]:
    return {task["task"]: task["score"]["mean"] for task in speedrun.scores(stage).tasks}


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(round(seconds), 1)} second{'s' if seconds >= 1.5 else ''}"
    words = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    if minutes <= 12:
        return f"{words[minutes - 2]} minutes"
    return f"{minutes} minutes" if minutes < 120 else f"{seconds / 3600:.1f} hours"


def _total(facts: dict[str, dict[str, Any]], name: str) -> float:
    return sum(each[name] or 0 for each in facts.values())


def _lead(speedrun: Speedrun, facts: dict[str, dict[str, Any]]) -> str:
    return (
        f"From text to a chat: a model of {facts['base']['params']:,} parameters, preset {speedrun.config.preset}, "
        f"trained for {_total(facts, 'time') / 60:.1f} minutes and {_total(facts, 'flops'):.3g} FLOPs in four stages. "
        "Scores are shares of right answers to test problems, in percent with standard errors over the problems."
    )


def _cards(speedrun: Speedrun, facts: dict[str, dict[str, Any]]) -> list[tuple[str, str, list[str], str]]:
    """A card for each task: its last score, and how it came about; one for the cost of it all."""
    color = optimizer_color(facts["base"]["opt"])
    before = _means(speedrun, STAGES[0])
    cards = []
    for task in speedrun.scores(STAGES[-1]).tasks:
        score, start = task["score"], 100 * before[task["task"]]
        lines = [f"from {start:.0f}% after the base run", f"{score['count']:,} test problems"]
        cards.append((task["task"], f"{100 * score['mean']:.0f}%", lines, color))
    cost = f"{_total(facts, 'flops'):.3g} FLOPs on {facts['base']['device']}"
    size = [f"{facts['base']['params'] / 1e6:.3g}M parameters", cost]
    return [*cards, ("training", f"{_total(facts, 'time') / 60:.1f} min", size, color)]


def _stage_table(speedrun: Speedrun, facts: dict[str, dict[str, Any]]) -> Table:
    price = speedrun.config.dollars_per_hour
    headings = ["stage", "optimizer", "peak lr", "steps", "tokens", "FLOPs", "minutes", "val loss", "bits/byte"]
    rows = []
    for stage, each in facts.items():
        minutes = (each["time"] or 0) / 60
        row = [
            TITLES[stage], each["opt"], f"{each['lr']:.3g}", f"{each['steps']:,}", f"{each['tokens']:,}",
            f"{each['flops']:.3g}", f"{minutes:.1f}", _number(each["val/loss"]), _number(each["val/bpb"]),
        ]  # fmt: skip
        if price is not None:
            row.append(f"{price * each['world_size'] * minutes / 60:.2f}")
        rows.append(row)
    return (headings if price is None else [*headings, "cost [$]"]), rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _environment(speedrun: Speedrun) -> Table:
    record = open_run(speedrun.folder("base")).config
    config = speedrun.config.as_dict()
    rows = [["device", str(record.get("device"))], ["ranks", str(record.get("world_size", 1))]]
    rows += [[name, str(value)] for name, value in record.get("versions", {}).items()]
    rows += [[flag(name), str(config[name])] for name in ("preset", "opt", "sft_opt", "rl_opt", "seed")]
    return ["setting", "value"], rows


def _samples(speedrun: Speedrun) -> list[tuple[str, str, list[tuple[str, bool]]]]:
    """(question, reference, (answer, whether it is right) after each stage) of the first problems of each task."""
    tasks = {stage: speedrun.scores(stage).tasks for stage in STAGES}
    samples = []
    for number, task in enumerate(tasks["base"]):
        for place, problem in enumerate(task["examples"][:SAMPLES]):
            each = [tasks[stage][number]["examples"][place] for stage in STAGES]
            answers = [(_shortened(one["answer"]), max(one.get("rewards", [0])) >= 1) for one in each]
            samples.append((problem["question"], f"right: {problem['reference']}", answers))
    return samples


def _shortened(answer: str) -> str:
    words = " ".join(answer.split()) or "(nothing)"
    return words if len(words) <= LONGEST else f"{words[:LONGEST]} ..."


def talk_commands(speedrun: Speedrun) -> list[str]:
    """The commands that talk to the result."""
    return [f"danalab chat --run {speedrun.folder('rl')}", f"danalab serve --run {speedrun.folder('rl')}"]


def _settings(speedrun: Speedrun) -> Table:
    given = [(stage, flag(name), value) for stage in STAGES for name, value in getattr(speedrun.preset, stage).items()]
    shown = [[*words, " ".join(map(str, value)) if isinstance(value, tuple) else str(value)] for *words, value in given]
    return ["stage", "setting", "value"], shown


def _markdown(speedrun: Speedrun, lead: str, tables: dict[str, Table]) -> str:
    parts = [f"# Speedrun {speedrun.out.name}\n\n{lead}\n"]
    parts += [f"## {name}\n\n{as_markdown(table)}" for name, table in tables.items()]
    parts.append("## Samples\n")
    for question, remark, answers in _samples(speedrun):
        table = ["stage", "answer"], [[stage, text] for stage, (text, _) in zip(STAGES, answers, strict=True)]
        parts.append(f"**{question}** ({remark})\n\n{as_markdown(table)}")
    parts.append(f"## Settings\n\n{as_markdown(_settings(speedrun))}")
    parts.append("## Talk to it\n\n```\n" + "\n".join(talk_commands(speedrun)) + "\n```\n")
    return "\n".join(parts)


def _page(speedrun: Speedrun, lead: str, tables: dict[str, Table], facts: dict[str, dict[str, Any]]) -> str:
    before, after = (_means(speedrun, stage) for stage in (STAGES[0], STAGES[-1]))
    task = next(iter(after))
    reached = f"{task}: {100 * before[task]:.0f} to {100 * after[task]:.0f}%"
    page = Page(f"{reached} in {_duration(_total(facts, 'time'))}", lead)
    page.cards(_cards(speedrun, facts))
    page.heading("Samples", "samples")
    page.paragraph("The most likely answer after each stage, to test problems; a tick marks those that are right.")
    page.samples(list(STAGES), _samples(speedrun))
    page.heading("Scores", "scores")
    page.table(*tables["Scores"])
    page.heading("Curves", "curves")
    caption = "Validation loss of each stage on its own data, and the mean reward of reinforcement learning."
    page.figure(curves_figure(speedrun), caption)
    page.heading("Stages", "stages")
    page.table(*tables["Stages"])
    with page.fold("Settings of each stage"):
        page.table(*_settings(speedrun))
    page.heading("Environment", "environment")
    page.table(*tables["Environment"])
    page.heading("Talk to it", "talk")
    page.verbatim("\n".join(talk_commands(speedrun)))
    return page.render()


@styled
def curves_figure(speedrun: Speedrun) -> Figure:
    """A panel for each stage: validation loss against tokens; for reinforcement learning the reward against steps."""
    figure, axes = panels(len(STAGES), columns=2)
    for stage, panel in zip(STAGES, axes, strict=True):
        run = open_run(speedrun.folder(stage))
        key, across = (REWARD, "step") if stage == "rl" else ("val/loss", "tokens")
        points = [(row[across], row[key]) for row in run.metrics() if row.get(key) is not None]
        if points:
            marks = "o" if len(points) <= FEW else None
            panel.plot(*zip(*points, strict=True), marker=marks, color=optimizer_color(run.config["config"]["opt"]))
        panel.set(title=f"{TITLES[stage]} ({run.config['config']['opt']})", xlabel=across)
        panel.set_ylabel("mean reward" if stage == "rl" else LOSS)
    return figure
