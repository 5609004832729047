"""Orthogonalisation by matrix products: X = U S V^T becomes approximately U V^T.

    A = X X^T          X <- a X + (b A + c A^2) X          s <- a s + b s^3 + c s^5  for every singular value s

with the same coefficients in each of five steps (Newton-Schulz), or optimal ones for each (Polar Express).

Source: K. Jordan et al., Muon (2024); Amsel et al. 2025, arXiv 2505.16932.
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

Coefficients = tuple[float, float, float]

METHODS: dict[str, tuple[Coefficients, ...]] = {
    # Steepest slope at zero with singular values kept near 1: [5e-3, 1] maps to 0.68..1.15.
    "newton-schulz": ((3.4445, -4.7750, 2.0315),) * 5,
    # Minimax polynomials with a 2% margin for rounding: [1e-3, 1] maps to 0.85..1.14.
    "polar-express": (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
}
EPS = 1e-7
"""Added to the Frobenius norm: a zero matrix stays zero."""
WIDE = 1.5
"""Columns per row from which the iteration is cheaper on A = X X^T than on X."""
LEAST_IN_16_BITS = 128
CHUNK = 1 << 24
"""Elements that are processed at once."""


def coefficients(method: str = "newton-schulz", steps: int = 5) -> tuple[Coefficients, ...]:
    """(a, b, c) of each step; after five steps the last ones repeat."""
    chain = METHODS[method]
    return (*chain, *[chain[-1]] * steps)[:steps]


def orthogonalize(x: Tensor, method: str = "newton-schulz", dtype: torch.dtype | None = None) -> Tensor:
    """About U V^T of each matrix U S V^T in `x` [..., rows, columns], in `dtype` (None: `fast_dtype`)."""
    tall = x.shape[-2] > x.shape[-1]
    wide = x.mT if tall else x
    stack = torch.empty(wide.shape, dtype=dtype or fast_dtype(x), device=x.device).copy_(wide)
    stack = iterate(stack.flatten(0, -3) if x.ndim > 2 else stack[None], coefficients(method)).view(
        wide.shape
    )
    return stack.mT if tall else stack


def fast_dtype(x: Tensor) -> torch.dtype:
    """Of the computation for matrices [..., rows, columns]: bfloat16 on GPUs, and on CPUs that multiply it
    where both sides are 128 or more, which is faster there; otherwise float32, or float64 for float64."""
    if x.dtype == torch.float64:
        return torch.float64
    is_fast = x.device.type != "cpu" or (min(x.shape[-2:]) >= LEAST_IN_16_BITS and multiplies_bfloat16())
    return torch.bfloat16 if is_fast else torch.float32


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether torch has instructions here for products in bfloat16, without which they take far longer."""
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return has is not None and torch.backends.cpu.get_cpu_capability().startswith("AVX512") and has()


def orthogonalize_each(xs: Sequence[Tensor], chain: Sequence[Coefficients]) -> list[Tensor]:
    """`orthogonalize` of many matrices; those of equal shape, up to transposition, in one batch."""
    alike: dict[tuple[int, int, torch.dtype, torch.device], list[int]] = {}
    for i, x in enumerate(xs):
        alike.setdefault((min(x.shape), max(x.shape), fast_dtype(x), x.device), []).append(i)
    out: list[Tensor] = [*xs]
    for (rows, columns, dtype, device), indices in alike.items():
        size = max(1, CHUNK // max(1, rows * columns))
        for first in range(0, len(indices), size):
            members = indices[first : first + size]
            stack = torch.empty(len(members), rows, columns, dtype=dtype, device=device)
            for k, i in enumerate(members):
                stack[k].copy_(xs[i] if xs[i].shape[0] == rows else xs[i].mT)
            stack = iterate(stack, chain)
            for k, i in enumerate(members):
                out[i] = stack[k] if xs[i].shape[0] == rows else stack[k].mT
    return out


def iterate(x: Tensor, chain: Sequence[Coefficients]) -> Tensor:
    """All steps on a stack [matrices, rows, columns], rows <= columns, which is overwritten."""
    if not x.numel():
        return x
    x.div_(x.norm(dim=(1, 2), keepdim=True).add_(EPS))
    # Not in 16 bits: rounding of A loses the small singular values of X, which are roots of A's eigenvalues.
    if x.shape[2] >= WIDE * x.shape[1] and x.dtype.itemsize > 2:
        # Polar Express is steeper: errors of A grow.
        restart = 5 if chain[0] == METHODS["newton-schulz"][0] else 4
        for first in range(0, len(chain), restart):
            x = _on_gram(x, chain[first : first + restart])
        return x
    for a, b, c in chain:
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _on_gram(x: Tensor, chain: Sequence[Coefficients]) -> Tensor:
    """Steps with only two products with `x`: P = a + b A + c A^2, then X <- P X and A <- P A P."""
    gram = torch.bmm(x, x.mT)
    total: Tensor | None = None
    for k, (a, b, c) in enumerate(chain):
        p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        p.diagonal(dim1=1, dim2=2).add_(a)
        total = p if total is None else torch.bmm(total, p)
        if k + 1 < len(chain):
            gram = torch.bmm(torch.bmm(p, gram), p)
    assert total is not None
    return torch.bmm(total, x)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a matrix, or of a convolution as the matrix [out, in * kernel]."""
    return shape[0], math.prod(shape[1:])
