"""The laws of a ladder as a rules file, which `danalab plan` and `danalab train` take with --rules."""

from collections.abc import Mapping, Sequence
from typing import Any

from danalab.errors import UserError
from danalab.ladder.analysis import Analysis
from danalab.ladder.fit.tuning import Row
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.shape import GPT2_VOCAB
from danalab.train.config.rules import DecayRule, RateRule, Rules, SizeRule


def fitted_rules(analysis: Analysis) -> Rules:
    """The learning-rate laws, the weight-decay strengths of the largest tuned runs, and the rule of the sizes."""
    if not analysis.lr_laws:
        reasons = "; ".join(note for note in analysis.notes if note.startswith("learning-rate law"))
        raise UserError(f"--rules: the ladder gives no learning-rate law ({reasons})")
    rates, decays, sizes = [], [], {}
    for opt, law in analysis.lr_laws.items():
        largest = analysis.at(opt)[-1].runs[0]
        arch = largest["arch"] or largest["settings"].get("arch")
        if not arch:
            raise UserError(f"--rules: run {largest['name']} does not give its architecture")
        rates.append(RateRule(arch=arch, opt=opt, global_batch=_global_batch(largest), a=law.a, b=law.b, d=law.d))
        if largest["settings"].get("omega") is not None:
            decays.append(DecayRule(arch=arch, opt=opt, omega=float(largest["settings"]["omega"])))
        sizes.setdefault(arch, []).extend(each.runs[0]["settings"] for each in analysis.at(opt))
    dimensions = [rule for arch, rows in sizes.items() if (rule := _size_rule(arch, rows)) is not None]
    return Rules(learning_rate=tuple(rates), weight_decay=tuple(decays), dimensions=tuple(dimensions))


def _size_rule(arch: str, sizes: Sequence[Mapping[str, Any]]) -> SizeRule | None:
    """The rule that all sizes of the ladder follow; None where they follow none, or have no heads."""
    names = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")
    if ARCHITECTURES.get(arch).oscillators or any(size.get(name) is None for size in sizes for name in names):
        return None
    rule = SizeRule(
        arch=arch,
        head_dim=sizes[0]["head_dim"],
        layers_per_head=max(size["n_layers"] / size["n_heads"] for size in sizes),
        mlp_ratio=max(size["mlp_dim"] / size["d_model"] for size in sizes),
    )
    ruled = [rule.dimensions(size["n_heads"], GPT2_VOCAB) for size in sizes]
    same = all(getattr(a, name) == size[name] for a, size in zip(ruled, sizes, strict=True) for name in names)
    return rule if same else None


def _global_batch(row: Row) -> int:
    settings = row["settings"]
    if settings.get("global_batch"):
        return int(settings["global_batch"])
    if not settings.get("batch_size"):
        raise UserError(f"--rules: run {row['name']} does not give its batch size")
    return int(settings["batch_size"] * (settings.get("acc_steps") or 1) * row["world_size"])
