"""`danalab optim export --style`: the file in stand-ins of the loops of nanochat and of modded-nanogpt's track 3.

Interfaces: `GPT.setup_optimizer` and `scripts/base_train.py` of nanochat, `train_gpt_simple.py` of track 3, both 2026.
"""

from __future__ import annotations

import inspect
import types

import pytest
import torch
from torch import nn

from danalab.cli.app import main
from danalab.optim import optimizer_spec
from danalab.optim.export import EXPORTED, STYLES, export

STEPS = 24
MATRICES = ("muon", "d-muon", "dana-muon", "manau")
OMEGA = {"omega": 4.0, "horizon": STEPS}
LOOP = """
optimizers, set_hparams = optimizer_part(model, train_steps)
assert set(p for opt in optimizers for group in opt.param_groups for p in group["params"]) == set(model.parameters())
for step in range(train_steps):
    model(tokens, targets).backward()
    set_hparams(step)
    for opt in optimizers:
        opt.step()
        rates.append([group["lr"] / group["peak_lr"] for group in opt.param_groups])
    model.zero_grad(set_to_none=True)
"""


class GPT(nn.Module):
    """The names of a track-3 script, without attention."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.proj = nn.Embedding(16, 8, dtype=dtype), nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, tokens, targets):
        x = self.embed(tokens).float()
        for block in self.blocks:
            x = x + block(x).relu()
        return nn.functional.cross_entropy(self.proj(x), targets)


def file_of(name: str, style: str) -> types.SimpleNamespace:
    scope: dict = {"__name__": "pasted"}
    exec(compile(export(name, style), f"{style}.py", "exec"), scope)
    return types.SimpleNamespace(**scope, build=scope[optimizer_spec(name).build.__name__])


def nanochat_groups(model: GPT, muon: str, adamw: str) -> list[dict]:
    """As `setup_optimizer` makes them, kinds by other words for the library."""
    blocks = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = [model.proj.bias, *(p for p in model.blocks.parameters() if p.ndim < 2)]
    rest = {"kind": adamw, "betas": (0.8, 0.96), "eps": 1e-10}
    return [
        {**rest, "params": [model.proj.weight], "lr": 0.004, "weight_decay": 0.01},
        {**rest, "params": [model.embed.weight], "lr": 0.02, "weight_decay": 0.001},
        {**rest, "params": others, "lr": 0.005, "weight_decay": 0.0},
        {
            "kind": muon,
            "params": blocks,
            "lr": 0.02,
            "momentum": 0.95,
            "ns_steps": 5,
            "beta2": 0.9,
            "weight_decay": 0.2,
        },
    ]


def train(model: GPT, optimizer, steps: range, decay=lambda group: 1.0) -> list[float]:
    """nanochat's loop, which sets the weight decay of matrices; `decay`: a factor on it, None leaves it alone."""
    tokens, losses = torch.arange(16), []
    for step in steps:
        loss = model(tokens, (7 * tokens + 3) % 16)
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * min(1.0, (step + 1) / 4, 2 * (1 - step / STEPS))
            if group["kind"] in ("muon", "matrix"):
                if "momentum" in group:  # the library's DanaMuon has none
                    group["momentum"] = 0.85 + 0.1 * min(1.0, step / 10)
                if decay is not None:
                    group["weight_decay"] = 0.2 * (1 - step / STEPS) * decay(group)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def with_initial_rates(optimizer):
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer


@pytest.mark.parametrize("omega", [False, True], ids=["nanochats-decay", "omega"])
@pytest.mark.parametrize("name", EXPORTED)
def test_nanochats_loop_makes_the_librarys_steps(name, omega):
    settings, ours, theirs = OMEGA if omega else {}, GPT(), GPT()
    pasted = file_of(name, "nanochat").build
    optimizer = with_initial_rates(pasted(nanochat_groups(ours, "muon", "adamw"), **settings))
    losses = train(ours, optimizer, range(STEPS))
    assert losses[-1] < losses[0]

    build = optimizer_spec(name).build
    known = {"params", "kind", "lr", "weight_decay", *inspect.signature(build).parameters} - {"beta2"}
    groups = [{k: v for k, v in g.items() if k in known} for g in nanochat_groups(theirs, "matrix", "head")]
    for group in groups:
        if omega and group["weight_decay"]:
            del group["weight_decay"]
        elif name not in MATRICES:
            group["weight_decay"] *= group["lr"]
    decay = None if omega else lambda group: 1.0 if name in MATRICES else group["peak_lr"]
    train(theirs, with_initial_rates(build(groups, fused=False, **settings)), range(STEPS), decay)
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


@pytest.mark.parametrize("name", ["adana", "dana-muon"])
def test_embeddings_in_16_bits_have_moments_in_32_also_after_a_resume(name):
    model = GPT(torch.bfloat16)
    pasted = file_of(name, "nanochat").build

    def build():
        return with_initial_rates(pasted(nanochat_groups(model, "muon", "adamw"), **OMEGA))

    optimizer = build()
    losses = train(model, optimizer, range(STEPS // 2))
    state, optimizer = optimizer.state_dict(), build()
    optimizer.load_state_dict(state)
    losses += train(model, optimizer, range(STEPS // 2, STEPS))
    assert losses[-1] < losses[0]
    assert model.embed.weight.dtype == torch.bfloat16
    assert optimizer.state[model.embed.weight]["exp_avg"].dtype == torch.float32


@pytest.mark.parametrize("name", MATRICES)
def test_a_stack_of_nanochats_experts_is_many_matrices(name):
    start, grads = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    ended = []
    for each in ([nn.Parameter(start.clone())], [nn.Parameter(matrix.clone()) for matrix in start]):
        optimizer = file_of(name, "nanochat").build([{"kind": "muon", "params": each, "lr": 0.1}])
        for p, grad in zip(each, [grads] if len(each) == 1 else grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        ended.append(torch.cat([p.detach().flatten() for p in each]))
    torch.testing.assert_close(*ended)


def test_the_gradients_of_ranks_are_averaged_as_nanochats_optimizer_does(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda share: share.add_(3 / 2))
    p = nn.Parameter(torch.zeros(4))
    p.grad = torch.ones(4)
    file_of("adana", "nanochat").build([{"kind": "adamw", "params": [p], "lr": 0.1}]).step()
    assert p.grad.tolist() == [2.0] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXPORTED)
def test_a_track_3_script_trains_with_the_part_alone(name, dtype):
    model, tokens, steps = GPT(dtype), torch.arange(16), 40
    targets = (7 * tokens + 3) % 16
    scope = {
        "model": model,
        "tokens": tokens,
        "targets": targets,
        "train_steps": steps,
        "rates": [],
        "__name__": "main",
    }
    before = model(tokens, targets).item()
    exec(compile(export(name, "track3") + LOOP, "train_gpt.py", "exec"), scope)
    assert model(tokens, targets).item() < before
    rates = torch.tensor(scope["rates"])
    warm, cool = 4, round(0.3 * steps)
    torch.testing.assert_close(rates[:warm, 0], torch.arange(1, warm + 1) / warm)
    assert (rates[warm : cool + 1] == 1).all()
    torch.testing.assert_close(rates[cool:, -1], (steps - torch.arange(cool, steps)) / (steps - cool))


@pytest.mark.parametrize("name", ["adana", "muon", "dana-muon", "manau"])
def test_its_steps_are_the_librarys(name):
    ours, theirs, steps, tokens = GPT(), GPT(), 40, torch.arange(16)
    targets, spec = (7 * tokens + 3) % 16, optimizer_spec(name)
    scope = {"model": ours, "tokens": tokens, "targets": targets, "train_steps": steps, "rates": [], "__name__": "main"}
    exec(compile(export(name, "track3") + LOOP, "train_gpt.py", "exec"), scope)
    groups = [{k: v for k, v in group.items() if k in ("params", "kind", "peak_lr", "weight_decay")}
              for group in scope["optimizers"][0].param_groups]  # fmt: skip
    at = {id(p): q for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)}
    for group in groups:
        group |= {"params": [at[id(p)] for p in group["params"]], "lr": group.pop("peak_lr")}
        if group["weight_decay"]:
            del group["weight_decay"]
    optimizer = spec.build(groups, omega=4.0, horizon=steps, fused=False)
    for rates in scope["rates"]:
        theirs(tokens, targets).backward()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = group["peak_lr"] * rate
        optimizer.step()
        theirs.zero_grad(set_to_none=True)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)  # the loop's rates come by another division


@pytest.mark.parametrize("style", STYLES[1:])
@pytest.mark.parametrize("name", EXPORTED)
def test_each_style_is_one_short_file_that_says_how_it_was_made(name, style):
    text = export(name, style)
    assert text.count("\n") <= 200
    assert max(map(len, text.splitlines())) <= 120
    assert f"danalab optim export {name} --style {style}" in " ".join(text.split("import ")[0].split())


def test_another_style_is_refused_in_one_line(capsys):
    assert main(["optim", "export", "adana", "--style", "nanogpt"]) == 2
    error = capsys.readouterr().err.strip()
    assert "it must be one of torch, nanochat, track3" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["adana", "muon", "dana-muon"])
def test_a_group_that_lacks_a_key_is_told_in_one_line_and_foreign_keys_change_nothing(name, style):
    def built(model: GPT):
        kinds = [{"params": [p], "kind": "matrix" if p.ndim == 2 else "vector"} for p in model.parameters()]
        return file_of(name, style).build(kinds)

    def steps(model: GPT, optimizer, count: int) -> None:
        for step in range(count):
            for p in model.parameters():
                p.grad = torch.full_like(p, 1.0 + step)
            optimizer.step()

    model, twin = GPT(), GPT()
    optimizer, straight = built(model), built(twin)
    for group in optimizer.param_groups:
        group["layer"] = 3
        group |= {"momentum": 0.5, "nesterov": False, "betas": (0.1, 0.2)} if name == "dana-muon" else {}
    steps(model, optimizer, 3), steps(twin, straight, 3)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    for key in ("lr", "eps", "peak_lr", *(["kind"] if name != "adana" else [])):
        kept = optimizer.param_groups[0][key]
        for group in optimizer.param_groups:
            del group[key]
        with pytest.raises(ValueError, match=f"^a group has no {key}$"):
            steps(model, optimizer, 1)
        for group in optimizer.param_groups:
            group[key] = kept
