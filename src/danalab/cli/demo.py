"""AdamW and ADana side by side on real text, in minutes on a laptop CPU."""

from dataclasses import dataclass

from danalab.cli._shared.options import JsonFlags
from danalab.experiments.settings import DemoConfig


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, DemoConfig):
    pass


def run(flags: Flags) -> None:
    """A demonstration on a laptop CPU: corpus, tokenizer, tuned AdamW and ADana, figures, table, samples, one page."""
    from danalab.experiments.comparison import comparison_table
    from danalab.experiments.demo import next_steps, run_demo, verdict
    from danalab.experiments.formats import print_table

    demo = run_demo(flags)
    if flags.print_json(demo):
        return
    print("\n".join(verdict(demo["runs"])) + "\n")
    print_table(*comparison_table(demo["runs"]), left=2)
    print(f"\nreport: {demo['page']}\n")
    print("\n".join(next_steps(demo)))
