"""AdamW and ADana side by side on real text, in minutes on a laptop CPU."""

from danalab.experiments.settings import DemoConfig
from danalab.train.config.flags import Answer


def run(flags: DemoConfig) -> Answer:
    """A demonstration on a laptop CPU: corpus, tokenizer, tuned AdamW and ADana, figures, table, samples, one page."""
    from danalab.experiments.comparison import comparison_table
    from danalab.experiments.demo import next_steps, run_demo, verdict
    from danalab.experiments.formats import as_text

    demo = run_demo(flags)
    table = as_text(*comparison_table(demo["runs"]), left=2)
    lines = [*verdict(demo["runs"]), "", table, "", f"report: {demo['page']}", "", *next_steps(demo)]
    return Answer(demo, lines)


VERBS = {"demo": (DemoConfig, run)}
