"""Cross-entropy and z-loss over a large vocabulary without materialising all logits, and the Hoyer penalty.

    ce = sum_valid(logsumexp(h W^T) - (h W^T)[target]) / valid_count;    lse2 = sum(logsumexp(h W^T)^2) / position_count

Rows are processed in chunks. With p = softmax, a chunk's logit gradient of `ce + z_loss * lse2` is
`p (valid / valid_count + 2 z_loss logsumexp / position_count) - onehot(target) / valid_count`; it is computed in place
from the logits during forward, so that backward only scales it.
Shapes: R rows (all of hidden's leading dimensions), C rows of a chunk, D model dimension, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from danalab.errors import UserError
from danalab.models.shards import local_shard

# Rows of a chunk, bounded by its logits. CPU: large enough for efficient matrix products, small enough for the passes
# between them to stay in cache where the vocabulary allows it. Accelerators: matrix products must be large.
_CPU_ROWS, _CPU_ENTRIES = 256, 1 << 24
_ACCELERATOR_ENTRIES = 1 << 26


def chunked_cross_entropy(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    z_loss: float = 0.0,
    ignore_index: int = -1,
    *,
    valid_count: Tensor | float | None = None,
    position_count: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    """(mean cross-entropy over valid targets, mean logsumexp^2 over all positions), scalars [nats, nats^2].

    Exact for any use of the two; cheapest when a multiple of `ce + z_loss * lse2` is differentiated, whose gradients
    are computed during forward. Without gradients only the values are computed. Under autocast matrix products are in
    its dtype, the softmax in float32.

    Args:
        hidden: [..., D]. head_weight: [V, D], whole on every rank.
        targets: [...], int64, each in [0, V) or `ignore_index`.
        z_loss: the factor by which the caller will add the second result to the first.
        valid_count: divisor of the summed cross-entropies; default the number of valid targets here. A caller that
            sums over micro-batches or ranks passes the number in the whole batch.
        position_count: likewise for the second result; default the number of positions here.
    Raises:
        UserError: shapes that do not fit; on CPU, a target outside the vocabulary.
    """
    with_grad = torch.is_grad_enabled() and (hidden.requires_grad or head_weight.requires_grad)
    rows, weight, problem = _problem(hidden, head_weight, targets, ignore_index, valid_count, position_count)
    with torch.autocast(hidden.device.type, enabled=False):
        if not with_grad:
            return _losses(*_forward_rows(rows, weight, problem), problem)
        return _ChunkedCrossEntropy.apply(rows, weight, problem, z_loss)


@torch.no_grad()
def token_cross_entropy(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    ignore_index: int = -1,
    correct: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of each target [nats], shaped like `targets`, 0 where these are `ignore_index`; no gradients.

    `correct`: bool, shaped like `targets`, is set to whether the target has the highest logit.
    Other arguments and errors are those of `chunked_cross_entropy`.
    """
    rows, weight, problem = _problem(hidden, head_weight, targets, ignore_index, 1.0, 1.0)
    with torch.autocast(hidden.device.type, enabled=False):
        ce, _ = _forward_rows(rows, weight, problem, None if correct is None else correct.view(-1))
    return ce.where(problem.valid, 0).view(targets.shape)


def hoyer_penalty(embeddings: Tensor, eps: float = 1e-8) -> Tensor:
    """Mean over tokens of |e|_1 / (|e|_2 + eps), a smooth count of active features: 1 (one) to sqrt(D) (all equal).

    `embeddings`: [..., D]. Source: Hoyer 2004, JMLR 5, without the affine rescaling.
    """
    exact = at_least_float32(embeddings)
    return (exact.abs().sum(-1) / (torch.linalg.vector_norm(exact, dim=-1) + eps)).mean()


class _Problem(NamedTuple):
    targets: Tensor  # [R], with ignored ones replaced by 0
    valid: Tensor  # [R], bool
    valid_count: Tensor
    position_count: Tensor
    dtype: torch.dtype  # of the matrix products


def _problem(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    valid_count: Tensor | float | None,
    position_count: Tensor | float | None,
) -> tuple[Tensor, Tensor, _Problem]:
    """(rows of hidden [R, D], the head, the rest), checked."""
    fits = head_weight.ndim == 2 and hidden.shape == (*targets.shape, head_weight.shape[1])
    if not fits or targets.dtype != torch.int64:
        raise UserError(
            "chunked_cross_entropy needs hidden [..., D], head_weight [V, D] and int64 targets [...]: got "
            f"{list(hidden.shape)}, {list(head_weight.shape)} and {targets.dtype} {list(targets.shape)}"
        )
    if targets.device.type == "cpu":  # elsewhere the check would wait for the device
        wrong = ((targets < 0) | (targets >= head_weight.shape[0])) & (targets != ignore_index)
        if wrong.any():
            raise UserError(
                f"target id {int(targets[wrong][0])} is outside the vocabulary of {head_weight.shape[0]} "
                f"(and is not ignore_index {ignore_index})"
            )
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    else:
        dtype = torch.promote_types(hidden.dtype, head_weight.dtype)
    flat = targets.reshape(-1)
    valid = flat != ignore_index
    exact = torch.promote_types(dtype, torch.float32)
    problem = _Problem(
        targets=flat.where(valid, 0),
        valid=valid,
        # without a valid target the mean is 0, not NaN
        valid_count=_scalar(valid.sum() if valid_count is None else valid_count, exact, hidden.device).clamp(
            min=1
        ),
        position_count=_scalar(
            flat.numel() if position_count is None else position_count, exact, hidden.device
        ),
        dtype=dtype,
    )
    return hidden.reshape(-1, hidden.shape[-1]), local_shard(head_weight), problem


def _scalar(value: Tensor | float, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device, dtype)
    return torch.full(
        (), value, dtype=dtype, device=device
    )  # a fill: a copy from the host would wait for the device


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, problem: _Problem, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, weight)
        ctx.problem, ctx.z_loss = problem, z_loss
        # Times valid_count until backward: p - onehot is of order 1, but divided by valid_count it would underflow in
        # float16, whose loss scale is known only in backward.
        z_factor = z_loss * problem.valid_count / problem.position_count
        unit = torch.ones_like(z_factor)
        ce, lse, *ctx.grads = _forward_backward_rows(rows, weight, problem, unit, z_factor)
        return _losses(ce, lse, problem)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - the decorator hides the parameters' names
        ctx: Any, grad_ce: Tensor | None, grad_z: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        if grad_ce is None and grad_z is None:
            return None, None, None, None
        # Forward's gradients are used once (the optimizer may overwrite them); a second backward recomputes them.
        grads, ctx.grads = ctx.grads, None
        if grads is not None and _matches_forward(grad_ce, grad_z, ctx.z_loss):
            assert grad_ce is not None
            scale = grad_ce / ctx.problem.valid_count
        else:
            rows, weight = ctx.saved_tensors
            zero = torch.zeros_like(ctx.problem.valid_count)
            ce_factor = zero if grad_ce is None else grad_ce / ctx.problem.valid_count
            z_factor = zero if grad_z is None else grad_z / ctx.problem.position_count
            scale = torch.maximum(ce_factor.abs(), z_factor.abs()).clamp(min=torch.finfo(zero.dtype).tiny)
            ce_factor, z_factor = ce_factor / scale, z_factor / scale
            grads = _forward_backward_rows(rows, weight, ctx.problem, ce_factor, z_factor)[2:]
        grad_rows, grad_weight = (grad.mul_(scale) for grad in grads)
        return grad_rows, grad_weight, None, None


def _matches_forward(grad_ce: Tensor | None, grad_z: Tensor | None, z_loss: float) -> bool:
    """Whether the gradient is that of a multiple of ce + z_loss * lse2."""
    if grad_ce is None or grad_z is None:
        return grad_ce is not None and z_loss == 0
    close = torch.isclose(grad_z, grad_ce * z_loss, rtol=1e-5, atol=0.0)
    if close.device.type == "cpu":
        return bool(close)
    # Reading the answer would wait for the device; there, other combinations are an error.
    torch._assert_async(
        close, "chunked_cross_entropy: z_loss must be the factor by which the second result is added"
    )
    return True


def _losses(ce_R: Tensor, lse_R: Tensor, problem: _Problem) -> tuple[Tensor, Tensor]:
    ce = ce_R.where(problem.valid, 0).sum() / problem.valid_count
    return ce, lse_R.square().sum() / problem.position_count


def _forward_rows(
    rows: Tensor, weight: Tensor, problem: _Problem, correct: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(cross-entropy [R], logsumexp [R]); writes to `correct` whether the target has the highest logit."""
    rows, weight = rows.to(problem.dtype), weight.to(problem.dtype)
    ce, lse = empty_results(rows)
    for chunk, logits in logit_chunks(rows, weight):
        target = problem.targets[chunk].unsqueeze(1)
        exponentials, _ = exponentials_of(logits, target, ce[chunk], lse[chunk])
        if correct is not None:
            correct[chunk] = exponentials.gather(1, target).squeeze(1) == 1
    return ce, lse


def _forward_backward_rows(
    rows: Tensor,
    weight: Tensor,
    problem: _Problem,
    ce_factor: Tensor,
    z_factor: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(cross-entropy [R], logsumexp [R], gradient of rows, of weight): of sum(ce) ce_factor + sum(lse^2) z_factor."""
    row_dtype, weight_dtype = rows.dtype, weight.dtype
    rows, weight = rows.to(problem.dtype), weight.to(problem.dtype)
    ce, lse = empty_results(rows)
    grad_rows = torch.empty_like(rows)
    # float32: sums of many chunks in bfloat16 would lose the small ones
    grad_weight = torch.zeros(weight.shape, dtype=ce.dtype, device=weight.device)
    for chunk, logits in logit_chunks(rows, weight):
        target = problem.targets[chunk].unsqueeze(1)
        exponentials, total = exponentials_of(logits, target, ce[chunk], lse[chunk])
        ce_factors = problem.valid[chunk] * ce_factor
        grad = exponentials.mul_(((ce_factors + 2 * z_factor * lse[chunk]) / total).unsqueeze(1))
        grad.scatter_add_(1, target, -ce_factors.unsqueeze(1))
        grad = grad.to(problem.dtype)
        torch.mm(grad, weight, out=grad_rows[chunk])
        if grad.dtype == grad_weight.dtype:
            grad_weight.addmm_(grad.T, rows[chunk])
        else:
            grad_weight.add_(grad.T @ rows[chunk])
    return ce, lse, grad_rows.to(row_dtype), grad_weight.to(weight_dtype)


def exponentials_of(
    logits_CV: Tensor, targets_C1: Tensor, ce_C: Tensor, lse_C: Tensor
) -> tuple[Tensor, Tensor]:
    """(exp(logits - their row's maximum), made in place, and its row sums [C]).

    Writes the rows' cross-entropy and logsumexp.
    """
    picked, highest = logits_CV.gather(1, targets_C1).squeeze(1), logits_CV.amax(-1)
    exponentials = logits_CV.sub_(highest.unsqueeze(1)).exp_()
    total = exponentials.sum(-1)
    torch.add(highest, total.log(), out=lse_C)
    torch.sub(lse_C, picked, out=ce_C)
    return exponentials, total


def empty_results(rows: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    ce = torch.empty(rows.shape[0], dtype=dtype, device=rows.device)
    return ce, torch.empty_like(ce)


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def logit_chunks(rows: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (slice of rows, their logits [C, V] in float32 or more, which may be overwritten)."""
    vocab_size, buffer = weight.shape[0], None
    size = _ACCELERATOR_ENTRIES // vocab_size
    if rows.device.type == "cpu":
        size = min(_CPU_ENTRIES // vocab_size, max(_CPU_ROWS, _CPU_ROWS * 4096 // vocab_size))
    for start in range(0, rows.shape[0], max(size, 1)):
        chunk = slice(start, start + max(size, 1))
        h = rows[chunk]
        # One buffer for all chunks, without an allocation for each.
        buffer = torch.mm(h, weight.T) if buffer is None else torch.mm(h, weight.T, out=buffer[: h.shape[0]])
        yield chunk, at_least_float32(buffer)
