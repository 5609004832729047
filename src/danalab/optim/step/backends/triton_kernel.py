"""The Triton kernel: one pass over memory for all parameters of a batch. Needs the package triton.

The arithmetic is that of kernels.cpp, from the same scalars. A program updates `BLOCK` elements of one parameter, whose
tensors it finds by their addresses: one launch, whatever the number of parameters. Scalars are read from device memory:
no step count and no setting is part of the compiled code, or of a CUDA graph.

Triton's interpreter runs it on CPUs, where the tests compare it with the reference (`TRITON_INTERPRET=1`).
"""
# pyright: reportArgumentType=false
# Triton turns plain values into its constants.

import torch
import triton
import triton.language as tl

DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}

BLOCK = 1024
"""Elements of a program."""
WARPS = 8
"""With four elements for each thread no rule needs more than 40 registers, and parameters of 16 bits need no exchange
through shared memory (`danalab_bench.gpu_roofline`)."""


@triton.jit(do_not_specialize=["count", "columns"])
def update(
    addresses,
    numbers,
    owners,
    scalars,
    skip,
    count,
    columns,
    RULE: tl.constexpr,
    CLIP: tl.constexpr,
    CAUTIOUS: tl.constexpr,
    SKIPS: tl.constexpr,
    PARAMETER: tl.constexpr,
    STATE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update the block of `tl.program_id(0)`.

    Args:
        addresses: int64 [2 + moments, count], of parameter, gradient, m, v and the third moment of each parameter.
        numbers: int64 [2, count], elements of each parameter, and the number of its first block.
        owners: int32 [blocks], the parameter of each block.
        scalars: `kernel_scalars.NAMES` in rows, [names, columns].
        skip: bool; True: nothing changes. Only read if SKIPS.
        columns: 1, or count: each parameter has its own scalars.
        CLIP, CAUTIOUS: the momentum is clipped; only coordinates decay that the step moves towards zero.
        PARAMETER, STATE: dtypes of parameter and gradient; of moments, scalars and arithmetic.
        ALIGNED: whether all addresses are multiples of 16.
    """
    if SKIPS:  # noqa: SIM102 - decided when the kernel is compiled, the other one on the device
        if tl.load(skip) != 0:
            return
    block = tl.program_id(0)
    k = tl.load(owners + block)
    numel = tl.load(numbers + k)
    start = (block - tl.load(numbers + count + k)) * BLOCK
    own = addresses + k
    s = scalars + tl.where(columns > 1, k, 0)
    if start + BLOCK <= numel:  # without a mask loads and stores are 16 bytes wide
        _update(own, s, start, numel, count, columns, RULE, CLIP, CAUTIOUS, PARAMETER, STATE, ALIGNED, False, BLOCK)
    else:
        _update(own, s, start, numel, count, columns, RULE, CLIP, CAUTIOUS, PARAMETER, STATE, ALIGNED, True, BLOCK)


@triton.jit
def _update(
    own,
    s,
    start,
    numel,
    count,
    columns,
    RULE: tl.constexpr,
    CLIP: tl.constexpr,
    CAUTIOUS: tl.constexpr,
    PARAMETER: tl.constexpr,
    STATE: tl.constexpr,
    ALIGNED: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lr = tl.load(s)
    decay_factor = tl.load(s + columns)
    eps = tl.load(s + 2 * columns)
    sign = tl.load(s + 3 * columns)
    gain1 = tl.load(s + 4 * columns)
    gain2 = tl.load(s + 5 * columns)
    momentum = tl.load(s + 7 * columns)
    offset = tl.load(s + 8 * columns)

    inside = start + tl.arange(0, BLOCK) < numel
    p_at = _pointers(own, start, PARAMETER, ALIGNED, BLOCK)
    g_at = _pointers(own + count, start, PARAMETER, ALIGNED, BLOCK)
    m_at = _pointers(own + 2 * count, start, STATE, ALIGNED, BLOCK)
    p = _read(p_at, inside, MASKED).to(STATE)
    g = sign * _read(g_at, inside, MASKED).to(STATE)
    m = _read(m_at, inside, MASKED)
    m += gain1 * (g - m)
    _write(m_at, m, inside, MASKED)
    if RULE == "dana":  # momentum: gamma3 (alpha + alpha_offset), here and in the next
        step = g + momentum * m
    elif RULE == "sign_dana":
        step = _sign(g) + momentum * _sign(m)
    else:
        v_at = _pointers(own + 3 * count, start, STATE, ALIGNED, BLOCK)
        v = _read(v_at, inside, MASKED)
        v += gain2 * (g * g - v)
        _write(v_at, v, inside, MASKED)
        root = tl.sqrt(v)
        if RULE == "adamw_decaying_wd":  # momentum: 1 / (1 - beta1^t)
            step = momentum * m / (root * tl.load(s + 12 * columns) + eps)
        elif RULE == "ademamix":  # momentum: 1 / (1 - beta1^t); offset: gamma3 alpha
            slow_at = _pointers(own + 4 * count, start, STATE, ALIGNED, BLOCK)
            slow = _read(slow_at, inside, MASKED)
            slow += tl.load(s + 6 * columns) * (g - slow)
            _write(slow_at, slow, inside, MASKED)
            step = (momentum * m + offset * slow) / (root * tl.load(s + 12 * columns) + eps)
        elif RULE == "auto_dana":  # momentum: gamma3 (1 + t)^(1 - kappa_max); offset: times gamma3
            r = root + eps
            u = m / r
            signal = tl.maximum(1 - tl.load(s + 13 * columns) / (u * u), 0)
            growth = tl.exp2(tl.load(s + 10 * columns) * (tl.load(s + 11 * columns) * signal))
            step = g / r + (momentum * growth + offset) * u
        elif RULE == "dana_star":  # momentum, offset, clip: times gamma3
            t = tl.load(s + 10 * columns)
            r = root + eps
            tau_at = _pointers(own + 4 * count, start, STATE, ALIGNED, BLOCK)
            tau = _read(tau_at, inside, MASKED)
            size = tl.abs(g)
            tau += tl.load(s + 6 * columns) * (size / (size + r) - tau)
            _write(tau_at, tau, inside, MASKED)
            c = tl.maximum(tl.minimum(tau, 0.5), 1 / (2 + t))  # q >= 1 / (1 + t)
            n = tl.sqrt(c / (1 - c)) / r
            damped = momentum * tl.exp2(tl.load(s + 11 * columns) * tl.log2(tl.maximum(tau * t, 1))) * m
            if CLIP:
                bound = tl.load(s + 9 * columns) * n * r * r
                damped = tl.minimum(tl.maximum(damped, -bound), bound)
            step = n * (g + damped + offset * m)
        else:  # adana. With a clip: momentum: gamma3 alpha; offset, clip: times gamma3
            r = root + eps
            if CLIP:
                bound = tl.load(s + 9 * columns) * r
                step = (g + tl.minimum(tl.maximum(momentum * m, -bound), bound) + offset * m) / r
            else:  # momentum: gamma3 (alpha + alpha_offset)
                step = (g + momentum * m) / r
    if CAUTIOUS:
        towards = ((step > 0) & (p > 0)) | ((step < 0) & (p < 0))
        p = tl.where(towards, decay_factor * p, p) - lr * step
    elif RULE == "ademamix":
        p = decay_factor * p - lr * step
    else:
        p = decay_factor * (p - lr * step)
    _write(p_at, p.to(PARAMETER), inside, MASKED)


@triton.jit
def _pointers(at, start, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """Of the block's elements of the tensor whose address is stored at `at`."""
    pointers = tl.load(at).to(tl.pointer_type(DTYPE)) + start + tl.arange(0, BLOCK)
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return pointers


@triton.jit
def _read(pointers, inside, MASKED: tl.constexpr):
    if MASKED:
        values = tl.load(pointers, mask=inside, other=0.0)
    else:
        values = tl.load(pointers)
    return values


@triton.jit
def _write(pointers, values, inside, MASKED: tl.constexpr):
    if MASKED:
        tl.store(pointers, values, mask=inside)
    else:
        tl.store(pointers, values)


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))


@triton.jit
def symmetric_product(
    left,
    right,
    out,
    size,
    inner,
    left_matrix,
    left_row,
    left_column,
    right_matrix,
    right_row,
    right_column,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Tile `tl.program_id(0)` on or below the diagonal of a product of the stack, and its mirror image above.

    Args:
        left, right, out: [matrices, size, inner], [matrices, inner, size], and [matrices, size, size], contiguous.
        left_matrix, ...: strides, in elements.
    """
    tile, matrix = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = ((tl.sqrt(8.0 * tile + 1.0) - 1.0) / 2.0).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > tile, i - 1, i)  # the root is rounded
    i = tl.where((i + 1) * (i + 2) // 2 <= tile, i + 1, i)
    rows = i * TILE + tl.arange(0, TILE)
    columns = (tile - i * (i + 1) // 2) * TILE + tl.arange(0, TILE)
    total = tl.full((TILE, TILE), 0.0, tl.float32)
    for start in range(0, inner, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a_at = left + matrix * left_matrix + rows[:, None] * left_row + k[None, :] * left_column
        b_at = right + matrix * right_matrix + k[:, None] * right_row + columns[None, :] * right_column
        a = tl.load(a_at, mask=(rows[:, None] < size) & (k[None, :] < inner), other=0.0)
        b = tl.load(b_at, mask=(k[:, None] < inner) & (columns[None, :] < size), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    value = total.to(out.dtype.element_ty)
    inside = (rows[:, None] < size) & (columns[None, :] < size)
    own = out + matrix * size * size
    tl.store(own + rows[:, None] * size + columns[None, :], value, mask=inside)
    tl.store(own + columns[None, :] * size + rows[:, None], value, mask=inside)
