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


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 64, 65, 16383, 16384, 32767, 32768])
def test_the_transform_has_room_for_the_linear_convolution(length):
    size = fft_length(length)
    assert 2 * length - 1 <= size < max(2, 4 * length - 2)
    assert size & (size - 1) == 0
    assert fft_length(32767) == fft_length(32768) == 65536


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
