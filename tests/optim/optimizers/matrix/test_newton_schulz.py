"""Orthogonalisation: the singular values that come out, and that the savings change nothing."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from danalab.errors import UserError
from danalab.optim import Muon
from danalab.optim.optimizers.matrix import newton_schulz
from danalab.optim.optimizers.matrix.newton_schulz import coefficients, orthogonalize
from danalab.optim.optimizers.matrix.symmetric import symmetric_product

SHAPES = [(48, 48), (48, 200), (200, 48), (40, 50)]


def with_singular_values(values: Tensor, rows: int, columns: int) -> Tensor:
    """A random matrix [rows, columns] with the given singular values, float64."""
    generator = torch.Generator().manual_seed(rows * columns)
    left = torch.linalg.qr(torch.randn(rows, len(values), dtype=torch.float64, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(columns, len(values), dtype=torch.float64, generator=generator))[0]
    return (left * values.double()) @ right.T


def plain(x: Tensor, chain: tuple[tuple[float, float, float], ...]) -> Tensor:
    """The iteration as it is written on paper."""
    flipped = x.shape[0] > x.shape[1]
    x = x.T if flipped else x
    x = x / (x.norm() + 1e-7)
    for a, b, c in chain:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if flipped else x


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize(
    ("method", "smallest", "low", "high"), [("newton-schulz", 5e-3, 0.68, 1.15), ("polar-express", 1e-3, 0.85, 1.14)]
)
def test_singular_values_come_out_within_the_measured_bounds(method, smallest, low, high, rows, columns):
    # What counts is the share of the Frobenius norm, by which the input is divided.
    values = torch.logspace(0, -1, 8, dtype=torch.float64)
    values[-1] = smallest * (values.square().sum() - values[-1] ** 2).sqrt() * 1.01
    x = with_singular_values(values, rows, columns)
    found = torch.linalg.svdvals(orthogonalize(x.float(), method).double())
    assert found[:8].min() > low - 0.005
    assert found[:8].max() < high + 0.005


def test_polynomials_keep_their_bounds_on_the_whole_interval():
    for method, smallest, low, high in (("newton-schulz", 5e-3, 0.68, 1.15), ("polar-express", 1e-3, 0.85, 1.142)):
        s = torch.logspace(0, torch.log10(torch.tensor(smallest)).item(), 20_000, dtype=torch.float64)
        for a, b, c in coefficients(method, 5):
            s = a * s + b * s**3 + c * s**5
        assert s.min() > low - 0.005, method
        assert s.max() < high + 0.005, method


@pytest.mark.parametrize(("rows", "columns"), [*SHAPES, (400, 400), (390, 800)])
@pytest.mark.parametrize("method", newton_schulz.METHODS)
def test_savings_change_nothing_in_float64(method, rows, columns):
    x = with_singular_values(torch.logspace(0, -3, 40), rows, columns)
    want = plain(x, coefficients(method, 5))
    assert torch.allclose(orthogonalize(x, method), want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", newton_schulz.METHODS)
@pytest.mark.parametrize("values", [torch.logspace(0, -6, 40), torch.cat([torch.ones(2), torch.full((38,), 1e-5)])])
def test_wide_matrices_lose_less_than_1e_4_an_entry_in_float32(values, method):
    x = with_singular_values(values, 48, 200)
    want = plain(x, coefficients(method, 5))
    assert torch.linalg.matrix_norm(orthogonalize(x.float(), method).double() - want, 2) < 1e-3
    assert (orthogonalize(x.float(), method) - want).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [6, 400])
def test_symmetric_products_are_exact_in_panels_and_as_a_whole(size, dtype):
    x = torch.randn(2, size, 30, generator=torch.Generator().manual_seed(5)).to(dtype)
    out = torch.full((2, size, size), float("nan"), dtype=dtype)
    symmetric_product(x, x.mT, out)
    torch.testing.assert_close(out, x @ x.mT, rtol=0, atol=64 * torch.finfo(dtype).eps)


def test_many_steps_stay_bounded_in_float32():
    x = with_singular_values(torch.logspace(0, -6, 40), 48, 200).float()
    assert torch.linalg.svdvals(orthogonalize(x, steps=10)).max() < 2


@pytest.mark.parametrize(("rows", "columns"), [*SHAPES, (400, 400)])
def test_a_matrix_does_not_depend_on_its_neighbours_in_the_stack(rows, columns):
    x = torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(1))
    assert torch.equal(orthogonalize(x)[1], orthogonalize(x[1]))


def test_matrices_of_a_shape_and_its_transpose_share_a_stack_and_come_back_right():
    generator = torch.Generator().manual_seed(2)
    shapes = [(8, 20), (20, 8), (8, 8), (8, 20)]
    xs = [torch.randn(shape, generator=generator) for shape in shapes]
    form = newton_schulz.Form(coefficients("newton-schulz", 5))
    found = dict(
        newton_schulz.orthogonalize_each(shapes, xs.__getitem__, form, [torch.float32] * len(xs), torch.device("cpu"))
    )
    assert sorted(found) == [0, 1, 2, 3]
    for i, x in enumerate(xs):
        assert torch.equal(found[i], orthogonalize(x))


def test_input_is_left_alone_and_zero_stays_zero():
    x = torch.randn(4, 6)
    before = x.clone()
    orthogonalize(x)
    assert torch.equal(x, before)
    assert torch.equal(orthogonalize(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_scale_of_the_input_does_not_matter():
    x = torch.randn(6, 9, dtype=torch.float64)
    assert torch.allclose(orthogonalize(x), orthogonalize(1e3 * x), atol=1e-6)


@pytest.mark.parametrize("multiplies", [True, False])
def test_cpus_that_multiply_bfloat16_use_it_for_matrices_that_gain(monkeypatch, multiplies):
    monkeypatch.setattr(newton_schulz, "multiplies_bfloat16", lambda: multiplies)
    large = torch.bfloat16 if multiplies else torch.float32
    one, exact = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    for shape, expected in (((128, 512), large), ((512, 127), torch.float32), ((128, 16, 3, 3), large)):
        assert newton_schulz.default_dtype(one, shape) == expected
        assert newton_schulz.default_dtype(exact, shape) == torch.float64
    assert newton_schulz.default_dtype(one.to("meta"), (8, 8)) == torch.bfloat16, "not a CPU"
    params = [torch.zeros(shape) for shape in ((128, 256), (64, 256), (256, 128))]
    for p in params:
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(p.shape[0]))
    Muon([{"params": params, "use_muon": True}], lr=1.0).step()
    for p in params:  # the first step of each matrix is that of orthogonalisation in its dtype
        dtype = newton_schulz.default_dtype(p, p.shape)
        alone = orthogonalize(torch.add(p.grad, p.grad, alpha=0.95), dtype=dtype).float()
        assert torch.equal(p, torch.zeros_like(p).add_(alone, alpha=-math.sqrt(max(1, p.shape[0] / p.shape[1]))))


def test_bfloat16_on_request():
    x = torch.randn(16, 24)
    found = orthogonalize(x, dtype=torch.bfloat16)
    assert found.dtype == torch.bfloat16
    assert (found.float() - orthogonalize(x)).abs().max() < 0.05


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "newton-shulz"}, "did you mean 'newton-schulz'"),
        ({"steps": 0}, "ns_steps is 0"),
        ({"steps": 2.5}, "ns_steps is 2.5"),
    ],
)
def test_bad_settings_are_refused_in_a_line(arguments, words):
    with pytest.raises(UserError, match="(?s)" + words):
        orthogonalize(torch.randn(3, 4), **arguments)


def test_vectors_are_refused():
    with pytest.raises(UserError, match="rows and columns"):
        orthogonalize(torch.randn(3))
