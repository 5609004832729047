"""AdamW and ADana side by side on real text, in minutes on a laptop CPU."""

from dataclasses import dataclass

from danalab.cli._shared.options import JsonFlags
from danalab.showcase import DemoConfig


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, DemoConfig):
    pass


def run(flags: Flags) -> None:
    """A demonstration on a laptop CPU: corpus, tokenizer, tuned AdamW and ADana, figures, table, samples, one page."""
    from danalab.report.comparison import COLUMNS, table_cells
    from danalab.report.formats import print_table
    from danalab.showcase.demo import next_steps, run_demo, verdict

    demo = run_demo(flags)
    if flags.print_json(demo.as_dict()):
        return
    print_table(list(COLUMNS), [table_cells(row) for row in demo.rows], left=2)
    print()
    for sentence in verdict(demo.rows):
        print(sentence)
    print(f"\nAll results on one page: {demo.page}\n")
    print("\n".join(next_steps(demo)))
