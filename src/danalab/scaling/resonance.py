"""Sizes of the resonance model, by name or by explicit numbers.

    size     d_model  n_layers  num_frequencies    parameters (tied head, vocabulary 50,304)
    small        512         8               64         48.6M
    medium      1024        12              128          191M
    large       1536        16              128          493M
    xlarge      2048        20              128         1.02B
    small-32k    768         6               64         77.6M
    large-32k   2048        16              256          841M
    xlarge-32k  4096        24              512         4.65B

The sizes "-32k" are those of the FineWeb-Edu 32k script, which counts them as 50M, 500M and 1B; its medium is ours.
The channels are divided into groups (8, unless n_heads says otherwise) that share the poles of R = num_frequencies /
groups damped oscillators; the MLP has 64 round(8 d_model / 192) hidden units.
"""

from dataclasses import dataclass, replace

from danalab.errors import UserError, nearest
from danalab.scaling.architectures import ARCHITECTURES
from danalab.scaling.dimensions import Dimensions, explicit_dimensions
from danalab.scaling.shape import GPT2_VOCAB, Shape

GROUPS = 8
LONGEST_TABLE = 32768
"""Rows of a table of learned positions, at most."""


@dataclass(frozen=True)
class ResonanceSize:
    """A row of the table."""

    d_model: int
    n_layers: int
    num_frequencies: int


SIZES = {
    "small": ResonanceSize(512, 8, 64),
    "medium": ResonanceSize(1024, 12, 128),
    "large": ResonanceSize(1536, 16, 128),
    "xlarge": ResonanceSize(2048, 20, 128),
    "small-32k": ResonanceSize(768, 6, 64),
    "large-32k": ResonanceSize(2048, 16, 256),
    "xlarge-32k": ResonanceSize(4096, 24, 512),
}


def resonance_dimensions(
    size: str | None = None,
    *,
    d_model: int | None = None,
    n_layers: int | None = None,
    num_frequencies: int | None = None,
    mixer: str | None = None,
    n_heads: int | None = None,
    head_dim: int | None = None,
    mlp_dim: int | None = None,
    vocab_size: int = GPT2_VOCAB,
) -> Dimensions:
    """Dimensions of a named size; explicit values override the name.

    Args:
        num_frequencies: oscillators of all groups; default 8 per group without a name.
        mixer: "none" leaves the oscillators out.
        n_heads: groups; default 8. head_dim: channels of a group, must equal d_model / n_heads.
    """
    if size is not None and size not in SIZES:
        raise UserError(f"unknown --size '{size}'{nearest(size, SIZES)}; known: {', '.join(SIZES)}")
    named = SIZES[size] if size is not None else None
    d_model = d_model or (named.d_model if named else None)
    n_layers = n_layers or (named.n_layers if named else None)
    groups = n_heads or GROUPS
    if d_model is None or n_layers is None:
        raise UserError(f"give a size: --size {'|'.join(SIZES)}, or --model-dim and --num-layers")
    if mixer != "none":
        num_frequencies = num_frequencies or (named.num_frequencies if named else 8 * groups)
        for flag, number in (("--model-dim", d_model), ("--num-frequencies", num_frequencies)):
            if number % groups:
                raise UserError(f"{flag} {number} is not divisible by the {groups} groups (--n-heads)")
    elif num_frequencies is not None:
        raise UserError(f"--num-frequencies {num_frequencies}: --mixer none has no oscillators; leave one out")
    dims = explicit_dimensions("resonance", d_model, n_layers, groups, head_dim, mlp_dim, vocab_size)
    return replace(dims, num_frequencies=num_frequencies, mixer=mixer if mixer == "none" else dims.mixer)


def check_resonance(shape: Shape) -> None:
    """Check a shape's learned positions and convolutions."""
    structure, width = shape.architecture, shape.conv_width
    if isinstance(width, bool) or not isinstance(width, int) or width < 0 or width == 1:
        raise UserError(f"--conv-width {width!r}: 0 (none), or at least 2 tokens (4 is usual)")
    if not structure.oscillators:
        if width:
            raise UserError(f"--conv-width {width}: only with --arch resonance (here it is {shape.arch})")
        if shape.learned_positions not in (None, structure.learned_positions):
            raise UserError(f"--learned-positions: only resonance lets it be chosen (here it is {shape.arch})")
        return
    if width and shape.mixer == "none":
        raise UserError(f"--conv-width {width}: --mixer none sees no earlier token; leave one out")
    if shape.learned_positions and shape.seq_len > LONGEST_TABLE:
        raise UserError(
            f"--learned-positions: the table has at most {LONGEST_TABLE} rows, but the context length is "
            f"{shape.seq_len}; shorten it, or leave the table out (oscillators need none)"
        )


def if_resonance(
    arch: str,
    size: str | None,
    num_frequencies: int | None,
    vocab_size: int,
    mixer: str | None = None,
    **given: int | None,
) -> Dimensions | None:
    """`resonance_dimensions` from command-line values, or None for another `arch`."""
    if ARCHITECTURES.get(arch).oscillators:
        return resonance_dimensions(size, num_frequencies=num_frequencies, vocab_size=vocab_size, mixer=mixer, **given)
    for flag, value in (("--size", size), ("--num-frequencies", num_frequencies), ("--mixer", mixer)):
        if value is not None:
            raise UserError(f"{flag} {value}: only with --arch resonance (here it is {arch})")
    return None
