import pytest
import torch

from danalab.models.resonance import convolution
from danalab.models.resonance.convolution import causal_convolution, fft_length


def direct(u, k):
    """O(T^2): y(t) = sum over tau <= t of k(tau) u(t - tau)."""
    length = u.shape[1]
    toeplitz = torch.zeros(k.shape[0], length, length, dtype=k.dtype)
    for tau in range(length):
        toeplitz.diagonal(-tau, 1, 2).copy_(k[:, tau : tau + 1].expand(-1, length - tau))
    return torch.einsum("dts,bsd->btd", toeplitz, u)


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 64, 65, 1000, 16383, 16384, 30011, 32767, 32768])
def test_the_transform_has_room_for_the_linear_convolution_and_only_small_factors(length):
    size = fft_length(length)
    assert 2 * length - 1 <= size <= max(2, 1.25 * 2 * length)
    assert size % 2 == 0
    for factor in (2, 3, 5):
        while size % factor == 0:
            size //= factor
    assert size == 1
    assert fft_length(32767) == fft_length(32768) == 65536


def test_blocks_change_nothing(monkeypatch):
    torch.manual_seed(0)
    u, k, g = torch.randn(5, 40, 37), torch.randn(37, 40), torch.randn(5, 40, 37)

    def run():
        mine = u.clone().requires_grad_(), k.clone().requires_grad_()
        y = causal_convolution(*mine)
        return [y.detach(), *torch.autograd.grad(y, mine, g)]

    whole = run()
    for block, least in ((1, 1), (80 * 7 * 2, 7), (80 * 37 * 2, 37)):
        monkeypatch.setitem(convolution.BLOCK, "cpu", block)
        monkeypatch.setattr(convolution, "MIN_CHANNELS", least)
        for one, other in zip(run(), whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200])
def test_the_fft_computes_the_direct_convolution(length):
    torch.manual_seed(length)
    u, k = torch.randn(2, length, 3, dtype=torch.float64), torch.randn(3, length, dtype=torch.float64)
    assert (causal_convolution(u, k) - direct(u, k)).abs().max() <= 1e-10
    assert (causal_convolution(u.float(), k.float()) - direct(u, k)).abs().max() <= 1e-4 * direct(
        u, k
    ).std().nan_to_num(1)


def test_gradients_are_those_of_finite_differences():
    torch.manual_seed(0)
    u = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    k = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(causal_convolution, (u, k))
    assert torch.autograd.gradcheck(lambda u: causal_convolution(u, k.detach()), (u,))


def future_reaches_the_past(length=100, place=60):
    torch.manual_seed(0)
    u, k = torch.randn(1, length, 2, dtype=torch.float64), torch.randn(2, length, dtype=torch.float64)
    other = u.clone()
    other[:, place] += 3
    return (causal_convolution(u, k) - causal_convolution(other, k))[:, :place].abs().max()


def test_without_padding_the_future_would_reach_the_past(monkeypatch):
    assert future_reaches_the_past() <= 1e-12
    monkeypatch.setattr(convolution, "fft_length", lambda length: length)
    assert future_reaches_the_past() > 1
