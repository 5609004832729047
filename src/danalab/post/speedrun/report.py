"""The report card of a speedrun: report.md with scores, stages and samples."""

from pathlib import Path
from typing import Any

from danalab.files import write_atomically
from danalab.post.settings import STAGES
from danalab.post.speedrun.pipeline import Speedrun, stage_facts

SAMPLES = 2  # questions of each task whose answers are shown
LONGEST = 140  # characters of an answer that are shown
Table = tuple[list[str], list[list[str]]]


def write_report(speedrun: Speedrun) -> Path:
    """Write report.md into the speedrun's folder; returns its path."""
    facts = {stage: stage_facts(speedrun.folder(stage)) for stage in STAGES}
    minutes, flops = (sum(each[name] or 0 for each in facts.values()) for name in ("time", "flops"))
    lead = (
        f"A model of {facts['base']['params']:,} parameters, preset {speedrun.config.preset}, trained for "
        f"{minutes / 60:.1f} minutes and {flops:.3g} FLOPs in four stages. Scores are shares of right answers to test "
        "problems, in percent with standard errors over the problems."
    )
    tables = {
        "Scores": scores_table(speedrun),
        "Stages": _stage_table(facts),
        "Samples": _sample_table(speedrun),
    }
    parts = [f"# Speedrun {speedrun.out.name}", lead]
    parts += [f"## {name}\n\n{_markdown(table)}" for name, table in tables.items()]
    parts.append("## Talk to it\n\n```\n" + "\n".join(talk_commands(speedrun)) + "\n```\n")
    file = speedrun.out / "report.md"
    write_atomically(file, "\n\n".join(parts))
    return file


def scores_table(speedrun: Speedrun) -> Table:
    """Score of each task after each stage, in percent with its standard error."""
    by_stage = {stage: {task["task"]: task["score"] for task in speedrun.scores(stage)} for stage in STAGES}
    rows = [[name, *(_percent(by_stage[stage][name]) for stage in STAGES)] for name in by_stage["base"]]
    return ["task", *STAGES], rows


def as_json(speedrun: Speedrun) -> dict[str, Any]:
    """Scores and facts of all stages."""
    found = {}
    for stage in STAGES:
        scores = {task["task"]: task["score"] for task in speedrun.scores(stage)}
        folder = speedrun.folder(stage)
        found[stage] = {"run": str(folder), **stage_facts(folder), "scores": scores}
    return found


def talk_commands(speedrun: Speedrun) -> list[str]:
    """The commands that talk to the result; the last one starts the page."""
    return [f"danalab chat --run {speedrun.folder('rl')}", f"danalab serve --run {speedrun.folder('rl')}"]


def _percent(score: dict[str, Any]) -> str:
    error = "" if score["error"] is None else f" ± {100 * score['error']:.1f}"
    return f"{100 * score['mean']:.1f}{error}"


def _stage_table(facts: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for stage, each in facts.items():
        loss = "-" if each["val/loss"] is None else f"{each['val/loss']:.4f}"
        row = [stage, each["opt"], f"{each['lr']:.3g}", f"{each['steps']:,}", f"{each['tokens']:,}"]
        rows.append([*row, f"{each['flops']:.3g}", f"{(each['time'] or 0) / 60:.1f}", loss])
    return ["stage", "optimizer", "peak lr", "steps", "tokens", "FLOPs", "minutes", "val loss"], rows


def _sample_table(speedrun: Speedrun) -> Table:
    """The most likely answers to the first test problems of each task after each stage; right ones are bold."""
    tasks = {stage: speedrun.scores(stage) for stage in STAGES}
    rows = []
    for number, task in enumerate(tasks["base"]):
        for place, problem in enumerate(task["examples"][:SAMPLES]):
            answers = [_shown(tasks[stage][number]["examples"][place]) for stage in STAGES]
            rows.append([problem["question"], problem["reference"], *answers])
    return ["question", "right", *STAGES], rows


def _shown(example: Any) -> str:
    words = " ".join(example["answer"].split())[:LONGEST] or "(nothing)"
    return f"**{words}**" if max(example.get("rewards", [0])) >= 1 else words


def _markdown(table: Table) -> str:
    headings, rows = table
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
