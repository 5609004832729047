"""The parts of models on a device: the numbers of float64 on the CPU, and the kernels that were meant."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.models.delta_rule import gated_delta_rule
from danalab.models.layers.attention import attend, attend_within_documents, document_starts
from danalab.models.loss import chunked_cross_entropy
from danalab.models.moe.experts import grouped_linear
from danalab.models.resonance.convolution import causal_convolution
from models.architectures import LENGTH, VARIANTS, VOCAB, tiny
from slow_cases import slow

TOKENS = torch.randint(VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(0))


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def near(found: Tensor, want: Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(
        found.detach().cpu().double(), want.detach().double(), rtol=tolerance, atol=tolerance
    )


def with_gradients(function, inputs: list[Tensor]) -> list[Tensor]:
    """The result of `function`, and the gradients of a fixed projection of it."""
    own = [x.detach().clone().requires_grad_() for x in inputs]
    y = function(*own)
    (y * normal(*y.shape, seed=9).bfloat16().to(y)).sum().backward()  # numbers that every dtype has
    return [y, *(x.grad for x in own)]  # pyright: ignore


@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
def test_the_chunked_loss_is_the_plain_one(device, z_loss):
    hidden, weight = normal(2, 300, 16), normal(97, 16, seed=1)
    targets = torch.randint(97, (2, 300), generator=torch.Generator().manual_seed(2))
    targets[0, :40] = -1

    def plain(h: Tensor, w: Tensor) -> Tensor:
        logits = h @ w.T
        ce = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return ce + z_loss * logits.logsumexp(-1).square().mean()

    def chunked(h: Tensor, w: Tensor) -> Tensor:
        ce, lse2 = chunked_cross_entropy(h, w, targets.to(device), z_loss)
        return ce + z_loss * lse2

    want = with_gradients(plain, [hidden, weight])
    found = with_gradients(chunked, [x.to(device, torch.float32) for x in (hidden, weight)])
    for a, b in zip(found, want, strict=True):
        near(a, b)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("kv_heads", [4, 2], ids=["each", "grouped"])
def test_attention_causal_masked_and_by_documents(device, kv_heads):
    length = 300  # more than a block of documents
    q, k, v = (
        normal(2, 4, length, 16),
        normal(2, kv_heads, length, 16, seed=1),
        normal(2, kv_heads, length, 16, seed=2),
    )
    tokens = torch.randint(20, (2, length), generator=torch.Generator().manual_seed(3))
    starts = document_starts(tokens, 0)
    place = torch.arange(length)
    causal = place <= place[:, None]
    documents = (causal & (place >= starts[:, :, None])).unsqueeze(1)
    grouped = kv_heads != 4
    ways = {
        "causal": (causal, lambda *x: attend(*x, grouped=grouped)),
        "masked": (documents, lambda *x: attend(*x, documents.to(device), grouped=grouped)),
        "documents": (documents, lambda *x: attend_within_documents(*x, starts.to(device), grouped=grouped)),
    }
    for mask, way in ways.values():
        want = with_gradients(lambda *x, mask=mask: softmax_attention(*x, mask), [q, k, v])
        found = with_gradients(way, [x.to(device, torch.float32) for x in (q, k, v)])
        for a, b in zip(found, want, strict=True):
            near(a, b)


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() or "PRETEND_GPU" in os.environ), reason="torch sees no CUDA device"
)
def test_no_attention_of_a_model_takes_the_kernel_that_keeps_all_scores(monkeypatch):
    from torch.nn.attention import SDPBackend

    seen = []
    real = F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask=None, is_causal=False, enable_gqa=False):
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else q.dtype
        cast = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
        chosen = torch._fused_sdp_choice(*cast, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
        seen.append((attn_mask is None, SDPBackend(chosen)))
        return real(q, k, v, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    for document_token in (None, 0):
        model = build_model(
            ModelConfig("qwen3", 128, 2, 4, 32, 256, VOCAB, 1024, n_kv_heads=2), device="cuda"
        )
        model.document_token = document_token
        tokens = torch.randint(VOCAB, (2, 1024), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            model(tokens, tokens)[0].backward()
    assert {backend for without_mask, backend in seen if without_mask} <= {
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    }
    assert SDPBackend.MATH not in {backend for _, backend in seen}


def losses_and_gradients(model: Decoder, tokens: Tensor) -> list[Tensor]:
    model.zero_grad()
    ce, lse2 = model(tokens, tokens.roll(-1, 1))
    (ce + 1e-4 * lse2).backward()
    return [ce.detach(), *(p.grad.detach() for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    "variant", ["qwen3-grouped", *slow(*(name for name in VARIANTS if name != "qwen3-grouped"))]
)
def test_every_architecture_has_the_loss_and_gradients_of_float64(device, variant):
    model = build_model(VARIANTS[variant], seed=4)
    want = losses_and_gradients(copy.deepcopy(model).double(), TOKENS)
    found = losses_and_gradients(model.to(device), TOKENS.to(device))
    for a, b in zip(found, want, strict=True):
        near(a, b, 3e-4)


@pytest.mark.parametrize("arch", ["enoki", "moe", *slow("qwen3", "resonance", "qwen3next")])
def test_autocast_in_bfloat16_changes_the_loss_by_its_rounding_only(device, arch):
    model = build_model(tiny(arch), seed=4)
    want = losses_and_gradients(model, TOKENS)[0]
    with torch.autocast(device.type, torch.bfloat16):
        found = losses_and_gradients(model.to(device), TOKENS.to(device))
    near(found[0], want, 0.02)
    assert all(x.isfinite().all() and x.dtype == torch.float32 for x in found)


@pytest.mark.parametrize("mode", ["full", *slow("every-n:2", "selective")])
@pytest.mark.parametrize("arch", ["enoki", *slow("moe")])
def test_activation_checkpointing_changes_no_gradient(device, arch, mode):
    model, tokens = build_model(tiny(arch), seed=4, device=device), TOKENS.to(device)
    want = losses_and_gradients(model, tokens)
    model.set_activation_checkpointing(mode)
    for a, b in zip(losses_and_gradients(model, tokens), want, strict=True):
        near(a, b.cpu(), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", *slow("inductor")])
@pytest.mark.parametrize("mode", ["none", *slow("full")])
@pytest.mark.parametrize("arch", ["enoki", *slow("qwen3", "qwen3next", "moe")])
def test_compiled_blocks_have_the_gradients_of_eager_ones(device, arch, mode, backend):
    torch.compiler.reset()
    model, tokens = build_model(tiny(arch), seed=4, device=device), TOKENS.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        want = losses_and_gradients(model, tokens)
        model.set_activation_checkpointing(mode)
        for block in model.blocks:
            block.compile(fullgraph=True, backend=backend)
        found = losses_and_gradients(model, tokens)
    for a, b in zip(found, want, strict=True):
        near(a, b.cpu(), 0.05 if device.type == "cuda" else 1e-4)


def test_products_by_groups_where_a_group_is_empty(device):
    """An expert that no token chose has the gradient zero, not what was in memory."""
    dtype = (
        torch.bfloat16 if device.type == "cuda" else torch.float32
    )  # for which torch has one kernel for all groups
    x, weight = normal(60, 16).to(dtype), normal(4, 24, 16, seed=1).to(dtype)
    counts = torch.tensor([17, 0, 43, 0])

    def by_loops(x: Tensor, weight: Tensor) -> Tensor:
        return torch.cat([rows @ w.T for rows, w in zip(x.split(counts.tolist()), weight, strict=True)])

    want = with_gradients(by_loops, [x.double(), weight.double()])
    for _ in range(3):  # memory that was used before
        found = with_gradients(
            lambda x, w: grouped_linear(x, w, counts.to(device)), [x.to(device), weight.to(device)]
        )
        for a, b in zip(found, want, strict=True):
            near(a, b, 0.02 if dtype == torch.bfloat16 else 1e-5)
        assert not found[2][1].any()
        assert not found[2][3].any()


def test_the_delta_rule_by_chunks_is_the_one_token_by_token(device):
    q, k = (F.normalize(normal(2, 150, 2, 8, seed=seed), dim=-1) for seed in (0, 1))
    v, g, b = (
        normal(2, 150, 4, 6, seed=2),
        -F.softplus(normal(2, 150, 4, seed=3)),
        normal(2, 150, 4, seed=4).sigmoid(),
    )
    state, outputs = torch.zeros(2, 4, 8, 6, dtype=torch.float64), []
    for t in range(150):
        o, state = gated_delta_rule(*(x[:, t : t + 1] for x in (q, k, v, g, b)), state)
        outputs.append(o[:, 0])
    inputs = [x.to(device, torch.float32).requires_grad_() for x in (q, k, v, g, b)]
    found, last = gated_delta_rule(*inputs)
    near(found, torch.stack(outputs, 1))
    near(last, state)
    found.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)


def test_the_convolution_by_transforms_is_the_direct_one(device):
    u, k = normal(2, 130, 5), normal(5, 130, seed=1)

    def direct(u: Tensor, k: Tensor) -> Tensor:
        padded = F.pad(u.mT, (129, 0))
        return F.conv1d(padded, k.flip(-1).unsqueeze(1), groups=5).mT

    want = with_gradients(direct, [u, k])
    found = with_gradients(causal_convolution, [x.to(device, torch.float32) for x in (u, k)])
    for a, b in zip(found, want, strict=True):
        near(a, b)


@pytest.mark.parametrize("arch", ["enoki", "qwen3", "resonance", "qwen3next"])
def test_a_cache_continues_as_the_whole_text_does(device, arch):
    model, tokens = build_model(tiny(arch), seed=4, device=device).eval(), TOKENS.to(device)
    with torch.no_grad():
        whole = model.hidden(tokens)
        cache = model.new_cache()
        parts = [model.hidden(part, cache) for part in tokens.split([10, 5, *[1] * (LENGTH - 15)], 1)]
    near(torch.cat(parts, 1), whole.cpu())
