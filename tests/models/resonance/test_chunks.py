"""A row in chunks is the row as a whole: values, gradients, causality."""

from __future__ import annotations

import pytest
import torch

from danalab.models.resonance import convolution
from danalab.models.resonance.convolution import causal_convolution, chunk_length, chunked_bank_convolution
from danalab.models.resonance.mixer import OscBank


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(convolution, "MIN_CHUNK", 16)


def make(dtype=torch.float64):
    bank = OscBank(12, 3, 2, 256).to(dtype)
    bank.draw(torch.Generator().manual_seed(0))
    return bank


def noise(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def as_a_whole(bank, u):
    return causal_convolution(u, bank.kernel(u.shape[1], u.dtype)) + bank.d * u


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-4)])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 100])
def test_values_and_gradients_are_those_of_one_long_convolution(short, length, dtype, tolerance):
    bank, u, g = make(dtype), noise(2, length, 12).to(dtype), noise(2, length, 12, seed=2).to(dtype)
    found = []
    for run in (bank, lambda u: as_a_whole(bank, u)):
        inputs = [u.clone().requires_grad_(), *bank.parameters()]
        y = run(inputs[0])
        found.append([y.detach(), *torch.autograd.grad(y, inputs, g)])
    for chunked, whole in zip(*found, strict=True):
        assert (chunked - whole).abs().max() <= tolerance * whole.abs().max()


def test_gradients_are_those_of_finite_differences(short):
    bank = make()
    gamma, omega = (value.detach().requires_grad_() for value in bank.damping_and_frequency())
    u, d = noise(2, 37, 12).requires_grad_(), noise(12, seed=3).requires_grad_()
    weight = torch.complex(noise(3, 4, 2, seed=4), noise(3, 4, 2, seed=5)).requires_grad_()
    assert torch.autograd.gradcheck(chunked_bank_convolution, (u, d, gamma, omega, weight), fast_mode=True)


def test_no_output_depends_on_a_later_chunk_or_a_later_token_of_its_own(short):
    bank, u = make(), noise(1, 70, 12).requires_grad_()
    for place in (0, 15, 16, 40, 69):
        (gradient,) = torch.autograd.grad(bank(u)[:, place].sum(), u)
        assert gradient[:, place + 1 :].abs().sum() <= 1e-9
        assert gradient[:, : place + 1].abs().min() > 0


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 32767, 32768, 65537, 10**6])
def test_chunks_are_neither_short_nor_many(length):
    chunk = chunk_length(length)
    assert chunk >= 1024
    assert -(-length // chunk) <= 64
