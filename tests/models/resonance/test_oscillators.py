import copy
import math

import pytest
import torch

from danalab.models.resonance.mixer import MAX_QUALITY, ComplexWeight, OscBank


def make(dim=8, groups=2, modes=3, train_len=256, dtype=torch.float64, seed=0):
    bank = OscBank(dim, groups, modes, train_len).to(dtype)
    bank.draw(torch.Generator().manual_seed(seed))
    return bank


def noise(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def by_definition(bank, u):
    """The formulas of the module, mode by mode and lag by lag, in float64 and O(T^2)."""
    bank, u = copy.deepcopy(bank).double(), u.double()
    length, channels = u.shape[1], u.shape[2] // bank.groups
    gamma, omega = bank.nu.exp(), math.pi / (1 + (-bank.theta).exp())
    lags = torch.arange(length)
    y = bank.d * u
    for d in range(u.shape[2]):
        g = d // channels
        k = sum(
            bank.weight.a[d, r].exp() * (1 - (-2 * gamma[g, r]).exp()).sqrt() * (-gamma[g, r] * lags).exp()
            * torch.cos(omega[g, r] * lags + bank.weight.phi[d, r])
            for r in range(bank.modes)
        )  # fmt: skip
        for t in range(length):
            y[:, t, d] += (k[: t + 1].flip(0) * u[:, : t + 1, d]).sum(1)
    return y


def by_steps(bank, u):
    state, outputs = bank.new_state(u), []
    for t in range(u.shape[1]):
        y, state = bank.step(u[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_fft_direct_recurrent_and_chunked_forms_agree(dtype, tolerance):
    bank, u = make(dtype=dtype), noise(2, 100, 8, dtype=dtype)
    exact = by_definition(bank, u)
    tolerance = tolerance * exact.std()
    stepped, state = by_steps(bank, u)
    assert (bank(u) - exact).abs().max() <= tolerance
    assert (stepped - exact).abs().max() <= tolerance
    for chunk in (7, 32, 4096):
        y, end = bank.prefill(u, bank.new_state(u), chunk)
        assert (y - exact).abs().max() <= tolerance
        assert (end - state).abs().max() <= 10 * tolerance


@torch.no_grad()
def test_prefill_goes_on_from_a_state():
    bank, u = make(), noise(2, 90, 8)
    whole, end = bank.prefill(u, bank.new_state(u))
    first, state = bank.prefill(u[:, :41], bank.new_state(u))
    second, state = bank.prefill(u[:, 41:], state)
    assert torch.allclose(torch.cat((first, second), 1), whole, atol=1e-12)
    assert torch.allclose(state, end, atol=1e-11)


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 100, 1023])
def test_the_past_does_not_see_the_future(length):
    bank, u = make(), noise(1, length, 8)
    with torch.no_grad():
        y = bank(u)
        for place in {0, length // 2, length - 1}:
            other = u.clone()
            other[:, place] = -50 * other[:, place] + 3
            assert (bank(other) - y)[:, :place].abs().sum() <= 1e-9
    u.requires_grad_()
    (gradient,) = torch.autograd.grad(bank(u)[:, length // 2].sum(), u)
    assert gradient[:, length // 2 + 1 :].abs().sum() <= 1e-9
    assert gradient[:, length // 2].abs().min() > 0


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [-200.0, -20.0, 0.0, 20.0, 200.0])
def test_no_parameters_make_it_unstable(value, dtype):
    for name in ("nu", "theta", "both"):
        bank = make(dtype=dtype, train_len=32768)
        for parameter in {"nu": [bank.nu], "theta": [bank.theta], "both": [bank.nu, bank.theta]}[name]:
            parameter.fill_(value)
        assert ((-bank.damping_and_frequency()[0]).exp() < 1).all()
        assert bank.kernel(500).isfinite().all()
        gamma, omega = bank.damping_and_frequency()
        assert (omega <= 2 * MAX_QUALITY * gamma * (1 + 1e-6)).all()


def test_extreme_parameters_have_finite_gradients():
    for value in (-200.0, 200.0):
        bank = make(dtype=torch.float32)
        with torch.no_grad():
            bank.nu.fill_(value)
            bank.theta.fill_(value)
        bank(noise(1, 50, 8, dtype=torch.float32)).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in bank.parameters())


@pytest.mark.slow
@torch.no_grad()
def test_a_hundred_thousand_steps_stay_finite_in_a_state_of_one_size():
    bank = make(4, 1, 2, train_len=32768, dtype=torch.float32)
    bank.nu.fill_(-20.0)
    u, state = torch.ones(1, 4), bank.new_state(torch.ones(1))
    size = state.nbytes
    largest = (-bank.damping_and_frequency()[0]).exp().max()
    for _ in range(100_000 // 100):  # steps of a hundred tokens
        _, state = bank.prefill(u.expand(1, 100, 4), state, 100)
    assert state.isfinite().all()
    assert state.nbytes == size
    assert state.abs().max() <= 1 / (1 - largest) * 1.01


@torch.no_grad()
@pytest.mark.parametrize("train_len", [256, 4096, 32768])
def test_white_noise_comes_out_of_the_first_oscillators_about_as_loud(train_len):
    bank = make(64, 8, 8, train_len, torch.float32)
    u = noise(1, train_len, 64, dtype=torch.float32)
    assert 0.7 <= (bank(u) - u).std() <= 1.4
    assert (bank.d == 1).all()


def test_gradients_of_all_parameters_are_those_of_finite_differences():
    bank, u = make(4, 2, 2), noise(1, 9, 4)
    names, parameters = zip(*bank.named_parameters(), strict=True)
    assert set(names) == {"nu", "theta", "weight.a", "weight.phi", "d"}

    def run(*values):
        return torch.func.functional_call(bank, dict(zip(names, values, strict=True)), (u,))

    assert torch.autograd.gradcheck(run, parameters)


def test_gradients_of_a_tap_are_bounded_at_every_lag():
    bank = make(4, 1, 1, train_len=64)
    gamma, omega = (value.item() for value in bank.damping_and_frequency())
    size = bank.weight.a[0, 0].exp().item() * math.sqrt(1 - math.exp(-2 * gamma))
    quality = omega / (2 * gamma)
    bounds = {
        "weight.a": size,
        "weight.phi": size,
        "nu": size * (1 / math.e + 0.5),
        "theta": size * 2 * quality / math.e,
    }
    for lag in (0, 1, 2, 5, 17, 100, 1000):
        taps = bank.kernel(lag + 1)[0, lag]
        for name, parameter in bank.named_parameters():
            if name in bounds:
                (gradient,) = torch.autograd.grad(taps, parameter, retain_graph=True)
                assert gradient.abs().max() <= bounds[name] * (1 + 1e-9)


def test_magnitude_and_phase_have_the_gradients_of_the_identities():
    weight = ComplexWeight(3, 2).double()
    with torch.no_grad():
        weight.a.copy_(noise(3, 2))
        weight.phi.copy_(noise(3, 2, seed=2))
    target = torch.complex(noise(3, 2, seed=3), noise(3, 2, seed=4))
    w = weight()
    w.retain_grad()
    (w * target).abs().square().sum().add((w * target).imag.sum()).backward()
    g, w = w.grad, w.detach()
    by_magnitude = (g.conj() * w / w.abs()).real
    assert torch.allclose(weight.a.grad, by_magnitude * w.abs())  # dm/da = m
    assert torch.allclose(weight.phi.grad, (g * w.conj()).imag)


def test_half_precision_is_added_up_in_float32():
    bank, u = make(dtype=torch.float32), noise(1, 300, 8, dtype=torch.float32).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = bank(u)
    assert y.dtype == torch.float32
    assert torch.equal(y, bank(u.float()))
