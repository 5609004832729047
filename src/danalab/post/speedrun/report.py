"""The report card of a speedrun: report.md with scores, curves, samples, stages and costs."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from danalab.colors import optimizer_color
from danalab.experiments.drawing import LOSS, panels, save_figure
from danalab.experiments.formats import Table, as_markdown
from danalab.files import write_atomically
from danalab.post.settings import STAGES
from danalab.post.speedrun.pipeline import MeanScore, Speedrun, stage_facts
from danalab.train.config.fields import flag
from danalab.train.run.open import open_run

TITLES = {"base": "base", "mid": "mid-training", "sft": "fine-tuning", "rl": "reinforcement learning"}
REWARD = "rl/reward"  # the metric of reinforcement learning that is drawn
SAMPLES = 2  # questions of each task whose answers are shown
LONGEST = 140  # characters of an answer that are shown
FEW = 8  # curves of so few points have a mark at each


def write_report(speedrun: Speedrun) -> Path:
    """Write report.md and the curves into the speedrun's folder; returns the report."""
    facts = {stage: stage_facts(speedrun.folder(stage)) for stage in STAGES}
    tables = {
        "Scores": scores_table(speedrun),
        "Stages": _stage_table(speedrun, facts),
        "Environment": _environment(speedrun),
    }
    save_figure(lambda: curves_figure(speedrun), speedrun.out / "curves")
    write_atomically(speedrun.out / "report.md", _markdown(speedrun, _lead(speedrun, facts), tables))
    return speedrun.out / "report.md"


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


def _total(facts: dict[str, dict[str, Any]], name: str) -> float:
    return sum(each[name] or 0 for each in facts.values())


def _lead(speedrun: Speedrun, facts: dict[str, dict[str, Any]]) -> str:
    return (
        f"From text to a chat: a model of {facts['base']['params']:,} parameters, preset {speedrun.config.preset}, "
        f"trained for {_total(facts, 'time') / 60:.1f} minutes and {_total(facts, 'flops'):.3g} FLOPs in four stages. "
        "Scores are shares of right answers to test problems, in percent with standard errors over the problems."
    )


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
    parts.append("## Curves\n\n![Validation loss of each stage, and the reward](curves.svg)\n")
    parts.append("## Samples\n")
    for question, remark, answers in _samples(speedrun):
        table = ["stage", "answer"], [[stage, text] for stage, (text, _) in zip(STAGES, answers, strict=True)]
        parts.append(f"**{question}** ({remark})\n\n{as_markdown(table)}")
    parts.append(f"## Settings\n\n{as_markdown(_settings(speedrun))}")
    parts.append("## Talk to it\n\n```\n" + "\n".join(talk_commands(speedrun)) + "\n```\n")
    return "\n".join(parts)


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
