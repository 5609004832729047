"""ZeRO-2: any number of ranks, any shapes, the same bits; canonical checkpoints; who owns what."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from danalab.errors import UserError
from danalab.optim import DistributedMuonAdamW, build_optimizer
from danalab.optim.distributed.zero.layout import Content, plan
from distributed.ranks import RankFailed, run_ranks

NAMES = ["muon", "d-muon", "manau", "adana", "dana-star-mk4", "adamw", "adamw-decaying-wd"]
BUCKET = 0.02  # MiB, so that the tiny model has several


class Tiny(nn.Module):
    """Odd shapes; the embedding and the head are large enough to be sliced."""

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


def settings_for(name: str) -> dict[str, Any]:
    return {"weight_decay": 0.1} if name in ("muon", "d-muon", "manau", "adamw") else {"omega": 4.0, "horizon": 100}


def alone(name: str, steps: range, start: tuple[list[Tensor], dict[str, Any]] | None = None) -> tuple[Any, Any]:
    """Weights and state_dict after the steps, by the optimizer without sharding."""
    model = tiny()
    optimizer = build_optimizer(name, model, lr=0.02, **settings_for(name))
    if start is not None:
        restore(model, start[0])
        optimizer.load_state_dict(start[1])
    for step in steps:
        give_gradients(model, step)
        optimizer.step()
    return weights(model), optimizer.state_dict()


def restore(model: nn.Module, values: list[Tensor]) -> None:
    with torch.no_grad():
        for p, value in zip(model.parameters(), values, strict=True):
            p.copy_(value)


def sharded(name: str, model: nn.Module, **settings: Any) -> DistributedMuonAdamW:
    return DistributedMuonAdamW(model, lr=0.02, optimizer=name, bucket_mib=BUCKET, **settings_for(name), **settings)


def zero_steps(rank: int, ranks: int, name: str, steps: range, start: Any = None) -> tuple[Any, Any]:
    model = tiny()
    optimizer = sharded(name, model)
    if start is not None:
        restore(model, start[0])
        optimizer.load_state_dict(start[1])
    for step in steps:
        give_gradients(model, step)
        optimizer.step()
        assert all(p.grad is None for p in model.parameters())
    return weights(model), optimizer.state_dict()


def assert_same_state(found: dict[str, Any], want: dict[str, Any]) -> None:
    assert found["param_groups"] == want["param_groups"]
    assert found["state"].keys() == want["state"].keys()
    for key, entry in want["state"].items():
        assert found["state"][key].keys() == entry.keys()
        for name, value in entry.items():
            assert torch.equal(found["state"][key][name], value), (key, name)


@pytest.mark.sample(5)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_ranks_gives_the_bits_of_the_optimizer_alone(name, ranks):
    want, state = alone(name, range(4))
    for found, found_state in run_ranks(zero_steps, ranks, name, range(4)):
        assert same(found, want)
        assert_same_state(found_state, state)


def fused_steps(rank: int, ranks: int, name: str) -> list[Tensor]:
    model = tiny()
    optimizer = sharded(name, model, fused=True)
    for step in range(4):
        give_gradients(model, step)
        optimizer.step()
    return weights(model)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["adana", "dana-star-mk4", "muon"])
def test_compiled_kernels_give_the_same_bits_on_slices(name):
    [want] = run_ranks(fused_steps, 1, name)
    for found in run_ranks(fused_steps, 3, name):
        assert same(found, want)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("name", ["muon", "dana-star-mk4", "adamw"])
def test_checkpoints_do_not_know_the_number_of_ranks(name, before, after):
    start = run_ranks(zero_steps, before, name, range(2))[-1]
    want, _ = alone(name, range(4))
    assert same(run_ranks(zero_steps, after, name, range(2, 4), start)[-1][0], want)


@pytest.mark.parametrize("name", ["manau", "adana"])
def test_checkpoints_are_those_of_the_optimizer_alone(name):
    want, _ = alone(name, range(4))
    assert same(alone(name, range(2, 4), run_ranks(zero_steps, 2, name, range(2))[0])[0], want)
    assert same(run_ranks(zero_steps, 2, name, range(2, 4), alone(name, range(2)))[0][0], want)


def tau_after_two_steps(rank: int, ranks: int, name: str) -> list[tuple[int, Tensor]]:
    model = tiny()
    optimizer = sharded(name, model)
    for step in range(2):
        give_gradients(model, step)
        optimizer.step()
    place = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    return [(place[id(p)], tau) for p, tau in optimizer.whole_states("tau")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["dana-star-mk4", "manau", "adana"])
def test_one_kind_of_state_is_brought_together_parameter_by_parameter(name):
    _, alone_state = alone(name, range(2))
    want = {i: state["tau"] for i, state in alone_state["state"].items() if "tau" in state}
    for found in run_ranks(tau_after_two_steps, 3, name):
        assert [i for i, _ in found] == sorted(want)
        assert all(torch.equal(tau, want[i]) for i, tau in found)


def train(rank: int, ranks: int, overlap: bool, micro: int, no_sync: bool) -> tuple[Any, Any]:
    """Two steps on a real loss, each rank with its part of the batch, clipped; weights and norms."""
    model = tiny()
    optimizer = sharded("d-muon", model, overlap=overlap)
    tokens = torch.randint(0, 131, (2, 2, 8, 16), generator=torch.Generator().manual_seed(0))
    norms = []
    for step in range(2):
        for k in range(micro):
            mine = tokens[step].flatten(0, 1).chunk(micro)[k].chunk(ranks)[rank]
            loss = nn.functional.cross_entropy(model(mine).flatten(0, 1), mine.flatten()) / micro
            if no_sync and k + 1 < micro:
                with optimizer.no_sync():
                    loss.backward()
            else:
                loss.backward()
        if overlap:
            assert all(p.grad is None for p in model.parameters())
        norms.append(optimizer.clip_grad_norm_(0.5))
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), norms


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("overlap", "micro", "no_sync"), [(False, 1, False), (True, 1, False), (True, 2, False), (True, 2, True)]
)
def test_ranks_with_parts_of_a_batch_equal_one_with_all_of_it(overlap, micro, no_sync):
    [(want, norms)] = run_ranks(train, 1, False, 1, False)
    assert all(norm > 0.5 for norm in norms)  # it clips
    for found, found_norms in run_ranks(train, 2, overlap, micro, no_sync):
        assert all(torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(found, want, strict=True))
        assert torch.allclose(torch.stack(found_norms), torch.stack(norms), rtol=1e-5)


def some_gradients(rank: int, ranks: int) -> tuple[Any, Any, Any]:
    model = tiny()
    optimizer = sharded("adana", model)
    before = weights(model)
    give_gradients(model, 0)
    for name, p in model.named_parameters():
        if name.startswith("up") or (name.startswith("head") and rank > 0):
            p.grad = None  # nobody has one for `up`, only rank 0 for the head
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    clocks = [int(entry["step"]) for entry in optimizer.state_dict()["state"].values()]
    return weights(model), dict(zip(names, moved, strict=True)), sorted(clocks)


def test_a_gradient_that_some_ranks_lack_counts_as_zero_there_and_one_that_all_lack_is_none():
    results = run_ranks(some_gradients, 3)
    for found, moved, clocks in results:
        assert same(found, results[0][0])
        assert [name for name, was_moved in moved.items() if not was_moved] == ["up.weight", "up.bias"]
        assert clocks == [0, 0] + [1] * 8


def uneven_passes(rank: int, ranks: int, overlap: bool) -> list[Tensor]:
    """Two backward passes a step, all of them sent; in a pass rank 1 has no gradient for a block in the middle."""
    model = tiny()
    optimizer = sharded("adana", model, overlap=overlap)
    for step in range(3):
        for k in range(2):
            present = [p for name, p in model.named_parameters() if rank == 0 or step == k or "blocks.1" not in name]
            torch.stack([p.sum() * (step + k + 1) / 4 for p in present]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_with_overlap_every_backward_pass_sends_the_same_buckets_whatever_gradients_a_rank_lacks():
    want = run_ranks(uneven_passes, 2, False)
    found = run_ranks(uneven_passes, 2, True, seconds=30.0)
    assert same(found[0], found[1])
    assert same(found[0], want[0])


def rehearsal(rank: int, ranks: int) -> bool:
    model = tiny()
    optimizer = sharded("d-muon", model)
    before = weights(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    clocks = [entry["step"] for entry in optimizer.state_dict()["state"].values()]
    return same(weights(model), before) and not any(clocks)


def test_the_rehearsal_of_checkpoint_helpers_changes_nothing():
    assert run_ranks(rehearsal, 2) == [True, True]


def through_checkpoint_helpers(rank: int, ranks: int) -> bool:
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model, twin = tiny(), tiny()
    optimizer, other = sharded("muon", model), sharded("muon", twin)
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
    optimizer = sharded("muon", tiny())
    return sum(v.numel() for state in optimizer._inner.state.values() for v in state.values())


def test_state_is_shared_out():
    [everything] = run_ranks(state_sizes, 1)
    parts = run_ranks(state_sizes, 3)
    assert max(parts) < 0.5 * everything


@pytest.mark.parametrize(("name", "in_parts"), [("adana", True), ("adamw", True), ("sgd", True), ("lion", False)])
def test_buckets_are_updated_one_by_one_where_no_clock_is_common(name, in_parts, monkeypatch):
    if name == "lion":
        pytest.importorskip("pytorch_optimizer")
    model = tiny()
    optimizer = DistributedMuonAdamW(model, lr=0.02, optimizer=name, bucket_mib=BUCKET)
    inner, calls = optimizer._inner, []
    step = inner.step
    monkeypatch.setattr(inner, "step", lambda: (calls.append(None), step()))
    give_gradients(model, 1)
    optimizer.step()
    buckets = len(optimizer._traffic)
    assert buckets > 1
    assert len(calls) == (buckets if in_parts else 1)


def test_schedules_act_on_the_groups():
    model = tiny()
    optimizer = sharded("muon", model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = weights(model)
    give_gradients(model, 0)
    optimizer.step()
    scheduler.step()
    assert same(weights(model), before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": "adanaa"}, "did you mean 'adana'"),
        ({"optimizer": "adana", "kapa": 0.5}, "did you mean 'kappa'"),
        ({"momentum": 2.0}, "momentum is 2.0"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(arguments, words):
    with pytest.raises(UserError, match=words):
        DistributedMuonAdamW(tiny(), **arguments)


def test_other_mistakes_are_refused_in_a_line():
    model = tiny()
    optimizer = sharded("muon", model)
    with pytest.raises(UserError, match="cannot be added later"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.randn(2, 2))]})
    with pytest.raises(UserError, match="another optimizer"):
        optimizer.load_state_dict(sharded("manau", tiny()).state_dict())
    model.double()
    with pytest.raises(UserError, match="moved or replaced"):
        optimizer.step()
    with pytest.raises(UserError, match="no parameters"):
        DistributedMuonAdamW([])


def fails(rank: int, ranks: int) -> None:
    if rank == 1:
        raise ValueError("no luck")
    torch.distributed.barrier()


def test_a_rank_that_fails_says_why_and_ends_the_others():
    with pytest.raises(RankFailed, match=r"rank 1:(?s:.*)no luck"):
        run_ranks(fails, 2)


contents = st.lists(
    st.builds(
        Content,
        numel=st.integers(1, 20_000),
        cost=st.floats(1, 1e6),
        sliceable=st.booleans(),
        key=st.sampled_from(["float32", "bfloat16"]),
    ),
    max_size=30,
)


@given(contents, st.integers(1, 9), st.integers(1, 40_000))
@settings(max_examples=80, deadline=None)
def test_every_element_has_one_owner_and_one_place(contents, ranks, bucket_elements):
    buckets = plan(contents, ranks, bucket_elements)
    covered: dict[int, list[tuple[int, int]]] = {}
    for bucket in buckets:
        places = sorted((piece.owner, piece.offset, piece.flag) for piece in bucket.pieces)
        for (owner, _, flag), (next_owner, offset, _) in itertools.pairwise(places):
            assert owner != next_owner or flag < offset
        assert all(flag < bucket.chunk for _, _, flag in places)
        assert len({contents[i].key for i in bucket.parameters}) == 1
        for piece in bucket.pieces:
            covered.setdefault(piece.parameter, []).append((piece.start, piece.stop))
    assert sorted(covered) == list(range(len(contents)))
    for i, spans in covered.items():
        spans.sort()
        assert spans[0][0] == 0
        assert spans[-1][1] == contents[i].numel
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
        assert contents[i].sliceable or len(spans) == 1


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=50), st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_the_heaviest_load_is_within_one_matrix_of_the_mean(costs, ranks):
    contents = [Content(numel=4, cost=cost, sliceable=False) for cost in costs]
    loads = [0.0] * ranks
    for bucket in plan(contents, ranks, 10):
        for piece in bucket.pieces:
            loads[piece.owner] += costs[piece.parameter]
    assert max(loads) <= sum(costs) / ranks + max(costs) * (1 + 1e-9)


class Unread(Tensor):
    """A flag that the host must not read."""

    def __bool__(self):
        raise AssertionError("read")


@pytest.mark.parametrize("capturable", [False, True])
def test_a_step_is_skipped_with_its_count_and_on_the_device_without_a_read(capturable):
    model, plain = tiny(), tiny()
    sharded = DistributedMuonAdamW(model, 0.1, optimizer="adana", capturable=capturable)
    alone = build_optimizer("adana", plain, lr=0.1)
    for step, skipped in enumerate((False, True, False)):
        give_gradients(model, step)
        give_gradients(plain, step)
        flag = torch.tensor(skipped)
        sharded.step(found_nonfinite=flag.as_subclass(Unread) if capturable else flag)
        sharded.zero_grad()
        if not skipped:
            alone.step()
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-6, atol=1e-7)
    assert {int(state["step"]) for state in sharded.state_dict()["state"].values()} == {2}
