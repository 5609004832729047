"""Orthogonalisation by matrix products: X = U S V^T becomes approximately U V^T.

Each step applies an odd polynomial to all singular values at once,

    A = X X^T          X <- a X + (b A + c A^2) X          s <- a s + b s^3 + c s^5

with the same three coefficients in every step (Newton-Schulz), or optimal ones for each step (Polar Express). Symmetric
products are computed once (`symmetric`), and wide matrices iterate on A, which is smaller than X (see `_gram_steps`).

Source: K. Jordan et al., Muon (2024); Amsel et al. 2025, arXiv 2505.16932.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from danalab.errors import UserError, nearest
from danalab.optim.optimizers.matrix.symmetric import symmetric_product
from danalab.optim.products import RESTART, RESTART_POLAR, WIDE
from danalab.native_library import multiplies_bfloat16

Coefficients = tuple[float, float, float]

NEWTON_SCHULZ: Coefficients = (3.4445, -4.7750, 2.0315)
"""Steepest slope at zero with singular values kept near 1: [5e-3, 1] maps to 0.68..1.15 in five steps."""

POLAR_EXPRESS: tuple[Coefficients, ...] = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Minimax polynomials of five steps, with a 2% margin for rounding: [1e-3, 1] maps to 0.85..1.14."""

METHODS = ("newton-schulz", "polar-express")

DIMENSIONS = {"rows": -1, "columns": -2}
NORMUON = "normuon"
"""The normalisation that has a state: see `row_factors`."""
NORMALISATIONS = ("rows", "columns", "rows-columns", "columns-rows", NORMUON)

ROW_EPS = 1e-10
"""Added to the root of a row's second moment, as in NorMuon's code."""

EPS = 1e-7
"""Added to the Frobenius norm: a zero matrix stays zero."""

_LEAST_IN_16_BITS = 128
_CHUNK = {"cpu": 1 << 22, "other": 1 << 27}
"""Elements processed at once: on CPUs what fits near the cache, elsewhere what fills the device."""


def coefficients(method: str, steps: int) -> tuple[Coefficients, ...]:
    """Coefficients (a, b, c) of each step; Polar Express repeats the last ones after five steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 100:
        raise UserError(f"ns_steps is {steps!r}; it must be a whole number from 1 to 100")
    method = str(method).replace("_", "-").lower()
    if method == "newton-schulz":
        return (NEWTON_SCHULZ,) * steps
    if method == "polar-express":
        return tuple(POLAR_EXPRESS[min(k, len(POLAR_EXPRESS) - 1)] for k in range(steps))
    raise UserError(f"unknown orthogonalisation '{method}'{nearest(method, METHODS)}; known: {', '.join(METHODS)}")


def default_dtype(x: Tensor, shape: Sequence[int]) -> torch.dtype:
    """Dtype of the computation for a matrix of this shape and the dtype and device of `x`.

    bfloat16 on GPUs, and on CPUs that multiply it where the smaller side is 128 or more: there it takes 0.5 to 0.9 of
    the time. Otherwise float32, or float64 for float64.
    """
    if x.dtype == torch.float64:
        return torch.float64
    is_fast = x.device.type != "cpu" or (min(matrix_shape(shape)) >= _LEAST_IN_16_BITS and multiplies_bfloat16())
    return torch.bfloat16 if is_fast else torch.float32


def orthogonalize(x: Tensor, method: str = "newton-schulz", steps: int = 5, dtype: torch.dtype | None = None) -> Tensor:
    """Approximately U V^T of each matrix U S V^T in `x`.

    Args:
        x: [..., rows, columns]; not changed.
        method: "newton-schulz" or "polar-express".
        dtype: of the computation and the result; None: see `default_dtype`.
    Returns:
        [..., rows, columns]; the zero matrix for a zero matrix.
    Raises:
        UserError: `x` has fewer than two dimensions; or see `coefficients`.
    """
    if x.ndim < 2:
        raise UserError(f"orthogonalize: the tensor has shape {tuple(x.shape)}; it must have rows and columns")
    stack = x.reshape(-1, *x.shape[-2:]).to(dtype or default_dtype(x, x.shape[-2:]), copy=True)
    tall = x.shape[-2] > x.shape[-1]
    stack = iterate(stack.mT.contiguous() if tall else stack, coefficients(method, steps))
    return (stack.mT if tall else stack).reshape(x.shape)


@dataclass(frozen=True)
class Form:
    """How matrices are orthogonalised, and what is done with the result."""

    chain: Sequence[Coefficients]
    """Of each step."""
    normalise: str | None = None
    """See `normalised`."""
    heads: int | None = None
    """Equal parts of the rows of each matrix, which are matrices of their own."""


def orthogonalize_each(
    shapes: Sequence[tuple[int, int]],
    fetch: Callable[[int], Tensor],
    form: Form,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
) -> Iterator[tuple[int, Tensor]]:
    """Orthogonalise many matrices; those of equal shape, up to transposition, in one batch.

    `shapes`: (rows, columns) of each; `dtypes`: of its computation, the same for equal shapes; `fetch`: index -> matrix
    in any dtype, called once for each, shortly before it is needed. Yields index and a [rows, columns] tensor in its
    dtype, ordered by shape.
    """
    heads = form.heads or 1
    parts = [(rows // heads, columns) for rows, columns in shapes]
    for members in _batches(parts, device.type, heads):
        size = len(members), heads, *sorted(parts[members[0]])
        stack = torch.empty(size, dtype=dtypes[members[0]], device=device)
        for k, i in enumerate(members):
            x = fetch(i).reshape(heads, *parts[i])
            stack[k].copy_(x if parts[i][0] <= parts[i][1] else x.mT)
        stack = iterate(stack.flatten(0, 1), form.chain).view(size)
        for k, i in enumerate(members):
            o = stack[k] if parts[i][0] <= parts[i][1] else stack[k].mT
            yield i, normalised(o, form.normalise).reshape(shapes[i])


def normalised(o: Tensor, how: str | None) -> Tensor:
    """`o` [..., rows, columns] with rows, columns, or both one after the other, of equal norms; its own norm stays."""
    for side in () if how in (None, NORMUON) else how.split("-"):
        norm = o.norm(dim=(-2, -1), keepdim=True)
        o = o / o.norm(dim=DIMENSIONS[side], keepdim=True).clamp_min(EPS)
        o = o * (norm / o.norm(dim=(-2, -1), keepdim=True).clamp_min(EPS))
    return o


def row_factors(squares: Tensor, v: Tensor) -> Tensor:
    """NorMuon's factors of rows, [..., rows, 1]: 1 / sqrt(v), times what keeps the norm of each matrix.

    squares: the mean squares of the rows; v: their second moments; both [..., rows, 1].
    """
    roots = v.sqrt() + ROW_EPS
    after = (squares / roots.square()).sum(dim=-2, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    return (squares.sum(dim=-2, keepdim=True) / after).sqrt() / roots


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a matrix, or of a convolution [out, in, *kernel] as the matrix [out, in * kernel]."""
    return shape[0], math.prod(shape[1:])


def _batches(shapes: Sequence[tuple[int, int]], device: str, each: int) -> list[list[int]]:
    """Indices of matrices, of which each is so many, to be stacked: equal shapes, up to transposition, at most a chunk
    in size."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, (rows, columns) in enumerate(shapes):
        alike.setdefault((min(rows, columns), max(rows, columns)), []).append(i)
    limit = _CHUNK["cpu" if device == "cpu" else "other"]
    batches = []
    for (rows, columns), indices in alike.items():
        size = max(1, limit // max(1, each * rows * columns))
        batches += [indices[i : i + size] for i in range(0, len(indices), size)]
    return batches


def iterate(x: Tensor, chain: Sequence[Coefficients]) -> Tensor:
    """All steps of `chain` on a stack of matrices, which is overwritten; one's result does not depend on the others.

    x: [matrices, rows, columns] with rows <= columns, contiguous, in the dtype of the computation; so is the result.
    """
    if x.numel() == 0:
        return x
    x.div_(x.norm(dim=(1, 2), keepdim=True).add_(EPS))
    rows, columns = x.shape[1:]
    # Not in 16 bits: rounding of A loses the small singular values of X, which are roots of A's eigenvalues.
    if columns >= WIDE * rows and x.dtype in (torch.float32, torch.float64):
        restart = RESTART if chain[0] == NEWTON_SCHULZ else RESTART_POLAR
        for first in range(0, len(chain), restart):
            x = _gram_steps(x, chain[first : first + restart])
        return x
    a_xx, b_aa, spare = x.new_empty(len(x), rows, rows), x.new_empty(len(x), rows, rows), torch.empty_like(x)
    for a, b, c in chain:
        symmetric_product(x, x.mT, a_xx)
        symmetric_product(a_xx, a_xx, b_aa)
        b_aa.mul_(c).add_(a_xx, alpha=b)
        torch.baddbmm(x, b_aa, x, beta=a, out=spare)
        x, spare = spare, x
    return x


def _gram_steps(x: Tensor, chain: Sequence[Coefficients]) -> Tensor:
    """A few steps of the iteration with only two products with `x`.

    With P = a + b A + c A^2 a step is X <- P X and A <- P A P. All are polynomials in the first A, so they commute and
    every product is symmetric. Q accumulates the P's; X <- Q X is computed last.
    """
    gram, p, q, spare = (x.new_empty(len(x), x.shape[1], x.shape[1]) for _ in range(4))
    symmetric_product(x, x.mT, gram)
    for k, (a, b, c) in enumerate(chain):
        symmetric_product(gram, gram, p)
        p.mul_(c).add_(gram, alpha=b).diagonal(dim1=1, dim2=2).add_(a)
        if k == 0:
            q.copy_(p)
        else:
            symmetric_product(q, p, spare)
            q, spare = spare, q
        if k + 1 < len(chain):
            symmetric_product(gram, p, spare)
            symmetric_product(spare, p, gram)
    return torch.bmm(q, x)
