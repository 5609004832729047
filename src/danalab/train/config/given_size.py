"""The size of a model as a person said it: by heads, by the name of a size, or number by number. Needs no torch."""

from __future__ import annotations

from danalab.errors import UserError
from danalab.scaling import Dimensions, dimensions, explicit_dimensions
from danalab.scaling.resonance import if_resonance
from danalab.train.config.model_flags import ModelFlags
from danalab.train.config.train_config import flag

NUMBERS = ("d_model", "n_layers", "n_heads", "head_dim", "mlp_dim")


def given_dimensions(flags: ModelFlags, vocab_size: int) -> Dimensions | None:
    """Explicit dimensions, or None where --heads decides.

    Raises:
        UserError: no size, or half of one; or what --heads decides is said otherwise.
    """
    given = {name: getattr(flags, name) for name in NUMBERS}
    if flags.heads is None:
        dims = if_resonance(flags.arch, flags.size, flags.num_frequencies, vocab_size, flags.mixer, **given)
        if dims is not None:
            return dims
    else:
        _agree_with_heads(flags, vocab_size)
        return None
    if flags.d_model is None or flags.n_layers is None or flags.n_heads is None:
        raise UserError("give a size: --heads N, or --d-model, --n-layers and --n-heads")
    return explicit_dimensions(
        flags.arch, flags.d_model, flags.n_layers, flags.n_heads, flags.head_dim, flags.mlp_dim, vocab_size,
        flags.n_kv_heads,
    )  # fmt: skip


def _agree_with_heads(flags: ModelFlags, vocab_size: int) -> None:
    assert flags.heads is not None
    for name in ("size", "num_frequencies", "mixer"):
        if getattr(flags, name) is not None:
            raise UserError(f"{flag(name)} {getattr(flags, name)}: not with --heads; leave one of the two out")
    by_rule = dimensions(flags.arch, flags.heads, vocab_size)
    for name in NUMBERS:
        # A configuration that was printed resolved has both, in agreement.
        if getattr(flags, name) not in (None, getattr(by_rule, name)):
            raise UserError(
                f"--heads {flags.heads} decides all dimensions, {flag(name)} {getattr(by_rule, name)} among them, "
                f"but it was given as {getattr(flags, name)}; leave one of the two out"
            )
