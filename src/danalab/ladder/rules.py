"""The laws of a ladder as a rules file, which `danalab plan` and `danalab train` take with --rules."""

from danalab.errors import UserError
from danalab.ladder.fit.tuning import Row
from danalab.ladder.results import Analysis
from danalab.train.config.rules import DecayRule, RateRule, Rules


def fitted_rules(found: Analysis) -> Rules:
    """The learning-rate laws, and the weight-decay strengths of the largest tuned runs."""
    if not found.lr_laws:
        reasons = "; ".join(note for note in found.notes if note.startswith("learning-rate law"))
        raise UserError(f"--rules: the ladder gives no learning-rate law ({reasons})")
    rates, decays = [], []
    for opt, law in found.lr_laws.items():
        largest = found.at(opt)[-1].runs[0]
        arch = largest["arch"] or largest["settings"].get("arch")
        if not arch:
            raise UserError(f"--rules: run {largest['name']} does not give its architecture")
        rates.append(RateRule(arch=arch, opt=opt, global_batch=_global_batch(largest), a=law.a, b=law.b, d=law.d))
        if largest["settings"].get("omega") is not None:
            decays.append(DecayRule(arch=arch, opt=opt, omega=float(largest["settings"]["omega"])))
    return Rules(learning_rate=tuple(rates), weight_decay=tuple(decays))


def _global_batch(row: Row) -> int:
    settings = row["settings"]
    if settings.get("global_batch"):
        return int(settings["global_batch"])
    if not settings.get("batch_size"):
        raise UserError(f"--rules: run {row['name']} does not give its batch size")
    return int(settings["batch_size"] * (settings.get("acc_steps") or 1) * row["world_size"])
