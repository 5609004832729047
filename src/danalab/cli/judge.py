"""Is one optimizer better than another? Paired seeds, and an end as soon as it is known."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from danalab.cli._shared.options import JsonFlags, Positional
from danalab.judge import JudgeConfig
from danalab.train.config.fields import PathText

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
    from danalab.judge.judge import judge
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
    judged = judge(flags, lambda line: print(line, file=sys.stderr, flush=True))
    page = flags.out or flags.ledger / "judgement.html"
    write_page(judged, page)
    verdicts = [{**asdict(each.verdict), "sentence": each.verdict.sentence()} for each in judged]
    if not flags.print_json({"verdicts": verdicts, "page": str(page)}):
        for each in judged:
            print(each.verdict.sentence())
        print(f"page: {page}")
    return min((EXIT_CODES[each.verdict.decision] for each in judged), key=(0, 3, 1).index)
