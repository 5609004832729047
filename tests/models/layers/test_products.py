"""Products by oneDNN: as exact as float32, only where they are wanted, and attention by products is attention."""

import pytest
import torch
from torch.nn import functional as F

from danalab.models import ModelConfig, build_model
from danalab.models.layers import attention, precision
from danalab.models.layers.precision import onednn_products, uses_onednn
from danalab import native_library


@pytest.fixture
def wanted(monkeypatch):
    """As on a processor where it is faster."""
    monkeypatch.setattr(precision, "_is_faster", lambda: True)


def error(a, b):
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


@pytest.mark.parametrize(("rows", "inner", "columns"), [(2048, 256, 1024), (7, 64, 300), (256, 4096, 64)])
def test_a_product_is_as_exact_as_that_of_the_default_library(wanted, rows, inner, columns):
    draw = torch.Generator().manual_seed(1)
    a, b = torch.randn(rows, inner, generator=draw), torch.randn(columns, inner, generator=draw).T
    usual = error(a, b)
    with onednn_products():
        assert error(a, b) < max(3 * usual, 5e-7)


def test_the_default_comes_back_even_after_an_error(wanted, monkeypatch):
    monkeypatch.setattr(precision, "_error", lambda: 0.0)
    before = precision._matmul().fp32_precision

    def work():
        with onednn_products():
            assert uses_onednn(torch.zeros(1))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        work()
    assert precision._matmul().fp32_precision == before
    assert not uses_onednn(torch.zeros(1))


def test_a_library_that_rounds_is_found_out_and_not_used(wanted, monkeypatch, caplog):
    monkeypatch.setattr(precision, "_error", lambda: 2e-3)
    with onednn_products() as on:
        assert not on
        assert not uses_onednn(torch.zeros(1))
    assert "does not multiply in float32" in caplog.text


@pytest.mark.parametrize(
    ("cpuinfo", "faster"),
    [
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512f avx512_bf16\n\n", True),
        ("vendor_id : AuthenticAMD\nflags : avx2\n\n", False),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512f amx_bf16\n\n", False),
        ("vendor_id : AuthenticAMD\nflags : avx512f amx_tile\n\n", False),
        ("", False),
    ],
)
def test_it_is_for_processors_whose_vector_unit_the_default_library_leaves_idle(monkeypatch, tmp_path, cpuinfo, faster):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(precision, "processor", lambda: native_library.processor(tmp_path / "cpuinfo"))
    assert precision._is_faster.__wrapped__() is faster
    assert native_library.processor(tmp_path / "none") == ""


def test_it_can_be_refused(wanted):
    with onednn_products(enabled=False) as on:
        assert not on


def attended(q, k, v, gradient, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    y = attention.attend(*(x.transpose(1, 2) for x in leaves), grouped=False)
    y.backward(gradient.to(dtype))
    return [y.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize("length", [1, 5, 127, 128, 129, 300, attention.LONGEST])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_attention_by_products_and_its_gradients_equal_those_in_float64(monkeypatch, length, dtype, tolerance):
    draw = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, length, 3, 8, generator=draw) for _ in range(3))
    gradient = torch.randn(2, 3, length, 8, generator=draw)
    expected = attended(q.double(), k.double(), v.double(), gradient, torch.float64)
    monkeypatch.setattr(attention, "uses_onednn", lambda x: True)
    for result, exact in zip(attended(q, k, v, gradient, dtype), expected, strict=True):
        # One token: the softmax is constant, and the gradients of q and k are rounding, in float64, too.
        size = exact.abs().max() if length > 1 else gradient.abs().max()
        assert (result.double() - exact).abs().max() <= tolerance * size


def test_it_is_used_for_short_rows_only(monkeypatch):
    monkeypatch.setattr(attention, "uses_onednn", lambda x: True)
    calls = []

    def count(*arguments, **settings):
        calls.append(arguments[0].shape[2])
        return original(*arguments, **settings)

    original = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", count)
    for length in (attention.LONGEST, attention.LONGEST + 1):
        x = torch.zeros(1, 2, length, 8)
        attention.attend(x, x, x, grouped=False)
    attention.attend(torch.zeros(1, 4, 8, 8), torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8), grouped=True)
    assert calls == [attention.LONGEST + 1, 8]


def test_a_model_sees_no_later_token_whatever_multiplies(wanted):
    model = build_model(ModelConfig("enoki", 32, 2, 2, 16, 64, 50, 200), seed=1)
    tokens = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(0))
    usual = model(tokens)
    with onednn_products(), torch.no_grad():
        whole = model(tokens)
        torch.testing.assert_close(whole, usual.detach(), rtol=1e-4, atol=1e-5)
        other = tokens.clone()
        other[:, 150:] = 3
        assert torch.equal(model(other)[:, :150], whole[:, :150])
