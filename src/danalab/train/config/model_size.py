"""The dimensions of a model from its settings: by heads, by the name of a size, or explicit. Needs no torch."""

from danalab.errors import UserError
from danalab.scaling import Dimensions, dimensions, explicit_dimensions
from danalab.scaling.resonance import if_resonance
from danalab.train.config.fields import flag
from danalab.train.config.rules import SizeRule
from danalab.train.config.sections.model import ModelSettings

NUMBERS = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")


def model_dimensions(settings: ModelSettings, vocab_size: int, rule: SizeRule | None = None) -> Dimensions | None:
    """Explicit dimensions, or those of --heads by a rule; None where --heads decides by the architecture's."""
    given = {name: getattr(settings, name) for name in NUMBERS}
    if settings.heads is None:
        dims = if_resonance(settings.arch, settings.size, settings.num_frequencies, vocab_size, settings.mixer, **given)
        if dims is not None:
            return dims
    else:
        ruled = None if rule is None else rule.dimensions(settings.heads, vocab_size, settings.n_kv_heads)
        _agree_with_heads(settings, ruled or dimensions(settings.arch, settings.heads, vocab_size))
        return ruled
    if settings.d_model is None or settings.n_layers is None or settings.n_heads is None:
        raise UserError("give a size: --heads N, or --d-model, --n-layers and --n-heads")
    return explicit_dimensions(
        settings.arch, settings.d_model, settings.n_layers, settings.n_heads, settings.head_dim, settings.mlp_dim,
        vocab_size, settings.n_kv_heads,
    )  # fmt: skip


def _agree_with_heads(settings: ModelSettings, by_rule: Dimensions) -> None:
    for name in ("size", "num_frequencies", "mixer"):
        if getattr(settings, name) is not None:
            raise UserError(f"{flag(name)} {getattr(settings, name)}: not with --heads; leave one of the two out")
    for name in NUMBERS:
        # A resolved configuration has both, and they agree.
        if getattr(settings, name) not in (None, getattr(by_rule, name)):
            raise UserError(
                f"--heads {settings.heads} decides all dimensions: {flag(name)} is {getattr(by_rule, name)}, "
                f"not {getattr(settings, name)}; leave one of the two out"
            )
