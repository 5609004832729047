"""AdamW and ADana side by side on real text, in minutes on a laptop CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Flags:
    out: Path = Path("demo")
    """Folder for everything that the demo makes."""
    tokens: int = 1_500_000
    """Training tokens of each run."""
    vocab_size: int = 1024
    """Size of the byte-pair encoding trained on the corpus [tokens]."""
    seeds: int = 1
    """Runs at each optimizer's best learning rate, with different seeds."""
    jobs: int | None = None
    """Runs at a time, one thread each; default one a core."""
    json: bool = False
    """Print one JSON object on standard output."""


def run(flags: Flags) -> None:
    """The whole story on a laptop CPU: corpus, tokenizer, tuned AdamW and ADana, pictures, table, samples, one page."""
    from danalab.report.comparison import COLUMNS, table_cells
    from danalab.report.tables.console import print_table
    from danalab.showcase.demo import DemoConfig, as_json, run_demo, verdict

    config = DemoConfig(
        out=flags.out, tokens=flags.tokens, vocab_size=flags.vocab_size, seeds=flags.seeds, jobs=flags.jobs
    )
    demo = run_demo(config)
    if flags.json:
        print(as_json(demo))
        return
    print_table(list(COLUMNS), [table_cells(row) for row in demo.rows], left=2)
    print()
    for sentence in verdict(demo.rows):
        print(sentence)
    print(f"\nAll of it on one page: {demo.page}")
