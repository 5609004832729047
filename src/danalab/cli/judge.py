"""Is one optimizer better than another? Paired seeds, and an end as soon as it is known."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.judge import JudgeConfig
from danalab.train.config.fields import PathText

if TYPE_CHECKING:
    from danalab.judge.judge import Judged

EXIT_CODES = {"better": 0, "no difference": 1, "worse": 1, "undecided": 3}


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, JudgeConfig):
    contestants: Positional[tuple[PathText, ...]] = ()
    """The baseline, then one or more contenders: NAME, NAME:SETTING=VALUE,..., FILE.yaml, FILE.py:NAME, module:NAME."""
    board: bool = False
    """Print the newest verdict on each question of the ledger, and write it as a page; runs nothing."""
    out: Path | None = None
    """The page; default judgement.html (board.html) in the ledger."""


def run(flags: Flags) -> int:
    """Judge contenders against a baseline. Exit code 0: one is better; 1: none is; 3: the budget ended undecided."""
    from danalab.judge.all_tracks import all_tracks
    from danalab.judge.judge import Judged, ablate, judge
    from danalab.judge.ledger import Ledger
    from danalab.judge.page import BOARD_HEADINGS, board, write_board, write_page
    from danalab.report.formats import print_table

    if flags.board:
        rows = Ledger(flags.ledger).verdicts()
        if flags.print_json({"verdicts": rows}):
            return 0
        print_table(BOARD_HEADINGS, board(rows), left=4)
        page = flags.out or flags.ledger / "board.html"
        flags.ledger.mkdir(parents=True, exist_ok=True)
        write_board(rows, page)
        print(f"\npage: {page}")
        return 0

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if flags.all_tracks:
        answer = all_tracks(flags, report)
        if not flags.print_json({**asdict(answer), "sentence": answer.sentence()}):
            rows = [(each.track, str(each.steps), f"{each.factor:.2f}") for each in answer.tracks]
            print_table(("track", "steps", f"{answer.baseline}'s steps / {answer.contender}'s"), rows)
            print(f"\n{answer.sentence()}")
        return 0 if min(each.factor for each in answer.tracks) >= 1 else 1
    page = flags.out or flags.ledger / "judgement.html"
    if flags.ablate:
        parts = ablate(flags, report)
        write_page([each for each in parts.values() if isinstance(each, Judged)], page)
        rows = [_part(name, found) for name, found in parts.items()]
        if not flags.print_json({"verdicts": rows, "page": str(page)}):
            cells = [(row["part"], row["answer"], row["sentence"]) for row in rows]
            print_table(("part", "answer", "verdict on the optimizer without it"), cells, left=3)
            print(f"\npage: {page}")
        return max({"helps": 0, "needed": 0, "undecided": 3}.get(row["answer"], 1) for row in rows)
    judged = judge(flags, report)
    write_page(judged, page)
    verdicts = [{**asdict(each.verdict), "sentence": each.verdict.sentence()} for each in judged]
    if not flags.print_json({"verdicts": verdicts, "page": str(page)}):
        for each in judged:
            print(each.verdict.sentence())
        print(f"page: {page}")
    return min((EXIT_CODES[each.verdict.decision] for each in judged), key=(0, 3, 1).index)


def _part(name: str, found: "Judged | str") -> dict[str, Any]:
    """What a part of an optimizer does, with the verdict on the optimizer without it."""
    from danalab.judge.judge import ANSWERS

    if isinstance(found, str):
        return {"part": name, "answer": "needed", "sentence": found}
    verdict = found.verdict
    answer = ANSWERS.get(verdict.decision, verdict.decision)
    return {"part": name, "answer": answer, **asdict(verdict), "sentence": verdict.sentence()}
