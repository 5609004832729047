"""What was predicted or known beforehand, beside what was measured: preregistered losses, the entropy of the data."""

from collections.abc import Sequence

from danalab.ladder.analysis import Analysis
from danalab.ladder.preregistration import Outcome
from danalab.report.tables.formats import Table

TITLE = "Preregistered: predicted from the other rungs before the largest one ran"


def registered_table(found: Sequence[Outcome]) -> Table:
    """A line for each optimizer."""
    lines = []
    for each in found:
        made = each.prediction
        lines.append([
            made.opt, f"{made.params:,}", f"{made.tokens:,}", f"{made.loss:.4f}",
            f"{made.interval.low:.4f} to {made.interval.high:.4f}",
            "not yet" if each.loss is None else f"{each.loss:.4f}",
            "-" if each.is_inside is None else "yes" if each.is_inside else "no",
        ])  # fmt: skip
    headings = ["optimizer", "parameters", "tokens", "predicted loss", "95% interval", "measured", "inside"]
    return headings, lines


def entropy_sentence(found: Analysis) -> str | None:
    """E of the laws beside the exact entropy of a generated language; None for other data, or without laws."""
    known = {row.get("entropy") for each in found.tuned for row in each.runs}
    entropy = known.pop() if len(known) == 1 else None
    if entropy is None or not found.loss_laws:
        return None
    law = next(iter(found.loss_laws.values()))
    interval = law.intervals.get("E")
    words = f"E of the law is {law.E:.4f}"
    if interval is not None:
        inside = "contains" if entropy in interval else "does not contain"
        words += f" ({interval.low:.4f} to {interval.high:.4f}), which {inside} the exact entropy"
    else:
        words += ", the exact entropy"
    return f"{words} of the data, {entropy:.4f} nats a token."


def epochs_sentence(found: Analysis) -> str | None:
    """Largest number of passes over the data; None where their size is not in the rows."""
    passes = [each.tokens / row["data_tokens"] for each in found.tuned for row in each.runs if row.get("data_tokens")]
    return f"Runs see up to {max(passes):.2g} epochs of the data." if passes else None
