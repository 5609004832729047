"""ZeRO-2: any number of ranks, any shapes, the same bits; canonical checkpoints; who owns what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim import DistributedMuonAdamW, build_optimizer, pieces
from danalab.optim.pieces import layout
from distributed.ranks import RankFailed, run_ranks

NAMES = ["muon", "d-muon", "manau", "dana-muon", "adana", "dana-star-mk4", "adamw", "adamw-decaying-wd"]


class Tiny(nn.Module):
    """Odd shapes, which no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(131, 40)
        self.blocks = nn.ModuleList(nn.Linear(40, 40, bias=False) for _ in range(3))
        self.up = nn.Linear(40, 33)
        self.down = nn.Linear(33, 40, bias=False)
        self.norm = nn.LayerNorm(40)
        self.head = nn.Linear(40, 131, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x + self.down(torch.relu(self.up(x)))))


@pytest.fixture(autouse=True)
def several_buckets(monkeypatch):
    monkeypatch.setattr(pieces, "BUCKET", 5000)


def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def give_gradients(model: nn.Module, step: int) -> None:
    """Gradients with few bits: sums over ranks and their averages are exact, so equal on any number of ranks."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randint(-50, 50, p.shape, generator=generator).float() / 256


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(found: list[Tensor], want: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def restore(model: nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        for p, value in zip(model.parameters(), values, strict=True):
            p.copy_(value)


def settings_for(name: str) -> dict[str, Any]:
    more = {"normalise": "normuon", "cautious_decay": True} if name == "dana-muon" else {}
    return {"lr": 0.02, "omega": 4.0, "horizon": 100, **more}


def run(build: Any, name: str, steps: range, start: Any = None) -> tuple[list[Tensor], dict[str, Any]]:
    """Weights and state_dict after the steps, from a start of the same form."""
    model = tiny()
    optimizer = build(model, optimizer=name, **settings_for(name))
    if start is not None:
        restore(model, start[0])
        optimizer.load_state_dict(start[1])
    for step in steps:
        give_gradients(model, step)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), optimizer.state_dict()


def alone(name: str, steps: range, start: Any = None) -> tuple[list[Tensor], dict[str, Any]]:
    return run(lambda model, optimizer, **own: build_optimizer(optimizer, model, **own), name, steps, start)


def zero(
    rank: int, ranks: int, name: str, steps: range, start: Any = None
) -> tuple[list[Tensor], dict[str, Any]]:
    return run(DistributedMuonAdamW, name, steps, start)


def assert_same_state(found: dict[str, Any], want: dict[str, Any]) -> None:
    for group, other in zip(found["param_groups"], want["param_groups"], strict=True):
        assert {**group, "fused": None} == {**other, "fused": None}
    assert found["state"].keys() == want["state"].keys()
    for key, entry in want["state"].items():
        assert found["state"][key].keys() == entry.keys()
        for name, value in entry.items():
            assert torch.equal(found["state"][key][name], value), (key, name)


@pytest.mark.sample(6)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_gives_the_bits_of_the_optimizer_alone(name, ranks):
    want, state = alone(name, range(4))
    for found, found_state in run_ranks(zero, ranks, name, range(4)):
        assert same(found, want)
        assert_same_state(found_state, state)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 4), (0, 2), (2, 0)])
@pytest.mark.parametrize("name", ["dana-muon", "dana-star-mk4", "adamw"])
def test_checkpoints_do_not_know_the_number_of_ranks(name, before, after):
    """0 ranks: the optimizer alone."""
    first = run_ranks(zero, before, name, range(2))[-1] if before else alone(name, range(2))
    end = run_ranks(zero, after, name, range(2, 4), first)[-1] if after else alone(name, range(2, 4), first)
    assert same(end[0], alone(name, range(4))[0])


def whole_states(rank: int, ranks: int, name: str) -> list[tuple[int, Tensor]]:
    model = tiny()
    optimizer = DistributedMuonAdamW(model, optimizer=name, **settings_for(name))
    give_gradients(model, 0)
    optimizer.step()
    place = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    return [(place[id(p)], tau) for p, tau in optimizer.whole_states("tau")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["dana-star-mk4", "manau", "adana"])
def test_one_kind_of_state_is_brought_together_parameter_by_parameter(name):
    _, state = alone(name, range(1))
    want = {i: entry["tau"] for i, entry in state["state"].items() if "tau" in entry}
    for found in run_ranks(whole_states, 3, name):
        assert [i for i, _ in found] == sorted(want)
        assert all(torch.equal(tau, want[i]) for i, tau in found)


def train(rank: int, ranks: int, micro: int, sync: bool) -> tuple[list[Tensor], list[float]]:
    """Two steps on a real loss, each rank with its part of the batch, clipped; weights and norms."""
    model = tiny()
    optimizer = DistributedMuonAdamW(model, optimizer="d-muon", lr=0.02)
    tokens = torch.randint(0, 131, (2, 4 * micro, 16), generator=torch.Generator().manual_seed(0))
    norms = []
    for step in range(2):
        for k in range(micro):
            mine = tokens[step].chunk(micro)[k].chunk(ranks)[rank]
            loss = nn.functional.cross_entropy(model(mine).flatten(0, 1), mine.flatten()) / micro
            loss.backward()
            if sync:  # gradients of shards accumulate
                optimizer.sync_gradients()
                assert all(p.grad is None for p in model.parameters())
        norms.append(float(optimizer.clip_grad_norm_(0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), norms


@pytest.mark.parametrize("sync", [False, True])
def test_clipped_steps_on_parts_of_a_batch_are_those_of_the_whole(sync):
    want, want_norms = train(0, 1, 2, False)
    for found, norms in run_ranks(train, 2, 2, sync):
        assert norms == pytest.approx(want_norms, rel=1e-5)
        for a, b in zip(found, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def uneven(rank: int, ranks: int) -> tuple[list[Tensor], list[int]]:
    """Rank 1 has no gradient for a block, and no rank one for another."""
    model = tiny()
    optimizer = DistributedMuonAdamW(model, optimizer="adana", lr=0.02)
    for step in range(3):
        give_gradients(model, step)
        model.blocks[2].weight.grad = None  # pyright: ignore
        if rank == 1:
            model.blocks[1].weight.grad = None  # pyright: ignore
        optimizer.step()
    return weights(model), sorted({int(entry["step"]) for entry in optimizer.state_dict()["state"].values()})


def test_a_gradient_that_some_ranks_lack_counts_as_zero_and_none_as_none():
    model = tiny()
    optimizer = build_optimizer("adana", model, lr=0.02)
    for step in range(3):
        give_gradients(model, step)
        model.blocks[2].weight.grad = None  # pyright: ignore
        model.blocks[1].weight.grad /= 2  # pyright: ignore
        optimizer.step()
    for found, steps in run_ranks(uneven, 2):
        assert same(found, weights(model))
        assert steps == [0, 3]


def through_checkpoint_helpers(rank: int, ranks: int) -> bool:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model, twin = tiny(), tiny()
    optimizer = DistributedMuonAdamW(model, optimizer="muon", lr=0.02)
    other = DistributedMuonAdamW(twin, optimizer="muon", lr=0.5)
    give_gradients(model, 0)
    optimizer.step()
    saved = get_optimizer_state_dict(model, optimizer)
    assert "head.weight" in saved["state"]
    restore(twin, weights(model))
    set_optimizer_state_dict(twin, other, saved)
    for m, o in ((model, optimizer), (twin, other)):
        give_gradients(m, 1)
        o.step()
    return same(weights(model), weights(twin))


def test_torch_checkpoint_helpers_round_trip():
    assert run_ranks(through_checkpoint_helpers, 2) == [True, True]


def state_sizes(rank: int, ranks: int) -> int:
    optimizer = DistributedMuonAdamW(tiny(), optimizer="muon")
    return sum(v.numel() for state in optimizer.inner.state.values() for v in state.values())


def test_state_is_shared_out():
    [everything] = run_ranks(state_sizes, 1)
    assert max(run_ranks(state_sizes, 3)) < 0.5 * everything


def test_schedules_act_on_the_groups():
    model = tiny()
    optimizer = DistributedMuonAdamW(model, optimizer="muon")
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = weights(model)
    give_gradients(model, 0)
    optimizer.step()
    assert same(weights(model), before)


def moved(optimizer: DistributedMuonAdamW, model: nn.Module) -> None:
    model.double()
    optimizer.step()


@pytest.mark.parametrize(
    ("arguments", "mistake", "words"),
    [
        ({"optimizer": "adanaa"}, None, "did you mean 'adana'"),
        ({"optimizer": "soap"}, None, "needs whole tensors"),
        ({"optimizer": "snoo"}, None, "needs whole tensors"),
        ({"optimizer": "adana", "kapa": 0.5}, None, "did you mean 'kappa'"),
        ({"optimizer": "muon", "momentum": 2.0}, None, "momentum is 2.0"),
        ({}, lambda optimizer, model: optimizer.add_param_group({"params": []}), "cannot be added"),
        ({}, moved, "was moved"),
        (
            {},
            lambda o, _: o.load_state_dict(DistributedMuonAdamW(nn.Linear(2, 2)).state_dict()),
            "other parameter",
        ),
    ],
)
def test_mistakes_are_refused_in_a_line(arguments, mistake, words):
    model = tiny()

    def make() -> None:
        optimizer = DistributedMuonAdamW(model, **arguments)
        mistake(optimizer, model)

    with pytest.raises(UserError, match=words):
        make()


def fails(rank: int, ranks: int) -> None:
    if rank == 1:
        raise ValueError("no luck")
    torch.distributed.barrier()


def test_a_rank_that_fails_says_why_and_ends_the_others():
    with pytest.raises(RankFailed, match=r"rank 1:(?s:.*)no luck"):
        run_ranks(fails, 2)


shapes = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 60), st.booleans(), st.booleans()), max_size=20
)


@given(shapes, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_every_element_has_one_owner_and_one_place(shapes, ranks):
    params = [torch.empty(r, c, dtype=torch.float32 if wide else torch.bfloat16) for r, c, wide, _ in shapes]
    whole = [each for *_, each in shapes]
    buckets = layout(params, whole, ranks)
    assert sorted(i for bucket in buckets for i in bucket.parameters) == list(range(len(params)))
    for bucket in buckets:
        assert len({params[i].dtype for i in bucket.parameters}) == 1
        taken = torch.zeros(ranks, bucket.chunk)
        for piece in bucket.pieces:
            taken[piece.owner, piece.offset : piece.offset + piece.stop - piece.start] += 1
        assert taken.max() <= 1
        for i in bucket.parameters:
            spans = sorted((piece.start, piece.stop) for piece in bucket.pieces if piece.parameter == i)
            assert [start for start, _ in spans] == [0, *[stop for _, stop in spans[:-1]]]
            assert spans[-1][1] == params[i].numel()
            assert len(spans) == 1 or not whole[i]
