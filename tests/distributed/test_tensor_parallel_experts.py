"""Experts and delta-rule layers whose features and heads ranks share compute, learn and are saved as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab.models.decoder import Decoder
from danalab.models.moe.experts import StackedLinear
from danalab.models.moe.mixture import Router, Usage, router_losses, weighted
from danalab.models.parallel import apply_expert_parallel, apply_tensor_parallel, check_tensor_parallel
from danalab.optim import build_optimizer
from danalab.train.checkpoint import tensors
from danalab.train.parallel.layout import RankLayout
from danalab.train.parallel.world import World
from distributed.curves import Case, curve, curves
from distributed.ranks import run_ranks

TENSOR = RankLayout("fsdp", tp_size=2)
MODELS = {
    "gelu": ModelConfig("moe", 32, 2, 4, 8, 24, 31, 12, n_experts=6, top_k=3, n_shared_experts=2,
                        shared_expert_gate=True, router_entropy_loss=0.5),
    "swiglu": ModelConfig("llama", 32, 2, 4, 8, 24, 31, 12, n_experts=4, mlp_only_layers=(1,), renormalise=False),
    "delta rule": ModelConfig("qwen3next", 32, 2, 4, 8, 60, 31, 12, full_attention_interval=2),
}  # fmt: skip
TOKENS = torch.randint(0, 31, (3, 12), generator=torch.Generator().manual_seed(1))
HIDDEN_TD = torch.randn(5, 8, generator=torch.Generator().manual_seed(2))


def cut(config: ModelConfig, size: int) -> Decoder:
    model = build_model(config, device="meta")
    apply_tensor_parallel(model, init_device_mesh("cpu", (size,)))
    model.to_empty(device="cpu")
    model.init_weights(torch.Generator().manual_seed(0))
    return model


def learned(model: Decoder) -> tuple[Tensor, dict[str, Tensor]]:
    """(logits, gradients): of the losses of tokens and of routers, these with a weight at which they count."""
    ce, _ = model(TOKENS, TOKENS.roll(-1, 1))
    routing = model.take_routing()
    assert routing is not None
    even = Usage.even(routing.counts.shape[0], routing.counts.shape[1], "cpu")
    usage = Usage(even.load + torch.linspace(-0.1, 0.1, routing.counts.shape[1]), even.probability)
    (ce + 20 * weighted(model.config, router_losses(routing, usage))).backward()
    grads = {}
    for name, p in model.named_parameters():
        grads[name] = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
    with torch.no_grad():
        return model(TOKENS), grads


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_every_gradient_are_those_of_one_process(name):
    def shared(rank: int, size: int):
        model = cut(MODELS[name], size)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        for module in model.modules():
            if isinstance(module, StackedLinear):
                along = Shard(2 if module.role == "expert_residual" else 1)
                assert getattr(module.weight, "placements") == (along,)  # noqa: B009
        return learned(model)

    logits, grads = learned(build_model(MODELS[name]))
    for found, found_grads in run_ranks(shared, 2):
        torch.testing.assert_close(found, logits, rtol=1e-5, atol=1e-5)
        for parameter, grad in grads.items():
            error = (found_grads[parameter] - grad).abs().max() / grad.abs().max()
            assert error < 1e-5, parameter


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        (2, Case("qwen3next", "d-muon", TENSOR, checkpointing="full", steps=4)),
        pytest.param(4, Case("moe", "adana", TENSOR, micro_batch=2, steps=4), marks=pytest.mark.slow),
    ],
    ids=["2 ranks", "2 x 2 ranks"],
)
def test_tensor_parallel_ranks_make_the_curve_of_one(ranks, case):
    results = [found for (found,) in run_ranks(curves, ranks, [case], seconds=240.0)]
    expected = curve(Case(case.arch, case.opt, steps=case.steps))
    assert all(torch.equal(found, results[0]) for found in results)
    error = ((results[0] - expected) / expected).abs()
    assert error[:, 0].max() < 1e-5, "loss"
    assert error[:, 1].max() < 5e-5, "gradient norm"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["moe", "qwen3next"])
def test_compiled_blocks_make_the_curve_of_one(arch):
    found = run_ranks(curves, 2, [Case(arch, "adana", TENSOR, compiled=True, steps=2)], seconds=290.0)[0][0]
    expected = curve(Case(arch, "adana", steps=2))
    assert (((found - expected) / expected).abs()[:, 0] < 1e-5).all()


def test_the_compiler_sees_the_local_shard_of_a_weight():
    def shared(rank: int, size: int):
        router = Router(8, 4, 2)
        torch.nn.init.normal_(router.map.weight)
        plain = [t.detach() for t in router(HIDDEN_TD)[:2]]
        mesh = init_device_mesh("cpu", (size,))
        router.map.weight = torch.nn.Parameter(
            distribute_tensor(router.map.weight.detach(), mesh, [Replicate()])
        )
        router.compile(backend="eager", fullgraph=True)
        return plain, [t.detach() for t in router(HIDDEN_TD)[:2]]

    ((plain, compiled),) = run_ranks(shared, 1)
    torch.testing.assert_close(compiled, plain)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", ["muon", "manau"])
def test_stacks_are_orthogonalised_matrix_by_matrix_however_they_are_cut(name, dim):
    def values() -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)
        return torch.randn(5, 7, 9, generator=draw), torch.randn(3, 5, 7, 9, generator=draw)

    def step(stack: torch.nn.Parameter, grads: list[Tensor]) -> Tensor:
        optimizer = build_optimizer(name, [{"params": [stack], "kind": "experts"}], lr=0.02)
        for grad in grads:
            stack.grad = grad
            optimizer.step()
        return stack.detach()

    def shared(rank: int, size: int) -> Tensor:
        stack, grads = values()
        if dim == 0:
            mesh, placements = init_device_mesh("cpu", (size,)), [Shard(0)]
        else:
            mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("shard", "tp"))
            placements = [Shard(0), Shard(dim)]
        spread = [distribute_tensor(t, mesh, placements) for t in (stack, *grads)]
        return step(torch.nn.Parameter(spread[0]), spread[1:]).full_tensor()  # pyright: ignore

    stack, grads = values()
    expected = step(torch.nn.Parameter(stack), list(grads))
    for found in run_ranks(shared, 4):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def stepped(model: Decoder):
    """The model and its optimizer after a step on the same gradients however the model is cut.

    Computed gradients differ in their last bits, which an optimizer that normalises makes steps of: where a gradient is
    0 but for rounding, its sign decides.
    """
    optimizer = build_optimizer("adana", model, lr=1e-2)
    draw = torch.Generator().manual_seed(3)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=draw)
        p.grad = distribute_tensor(grad, p.device_mesh, p.placements) if isinstance(p, DTensor) else grad
    optimizer.step()
    return model, optimizer


@pytest.mark.slow
def test_what_ranks_with_features_of_experts_save_any_other_arrangement_reads(tmp_path: Path):
    config = MODELS["gelu"]

    def saved(rank: int, size: int):
        control: Any = torch.distributed.new_group(backend="gloo")
        state = tensors.state_of(*stepped(cut(config, size)))
        tensors.write(state, tmp_path, World(rank=rank, size=size, control=control))

    def read(rank: int, size: int):
        found = []
        for by_features in (True, False):
            model = cut(config, size) if by_features else build_model(config, seed=5)
            if not by_features:
                apply_expert_parallel(model, config, init_device_mesh("cpu", (size,)))
            optimizer = build_optimizer("adana", model, lr=1e-2)
            tensors.read(tmp_path, model, optimizer)
            values = {
                n: p.full_tensor() if isinstance(p, DTensor) else p.detach()
                for n, p in model.named_parameters()
            }
            for n, p in model.named_parameters():
                moment = optimizer.state[p]["exp_avg"]
                values[f"{n} moment"] = moment.full_tensor() if isinstance(moment, DTensor) else moment
            found.append(values)
        return found

    run_ranks(saved, 2)
    alone, moments = stepped(build_model(config))
    model = build_model(config, seed=5)
    optimizer = build_optimizer("adana", model, lr=1e-2)
    tensors.read(tmp_path, model, optimizer)
    for found in run_ranks(read, 2)[0]:
        for name, p in alone.named_parameters():
            own = model.get_parameter(name)
            torch.testing.assert_close(own, p, msg=name)
            torch.testing.assert_close(optimizer.state[own]["exp_avg"], moments.state[p]["exp_avg"], msg=name)
            assert torch.equal(found[name], own), name
            assert torch.equal(found[f"{name} moment"], optimizer.state[own]["exp_avg"]), name


@pytest.mark.parametrize(
    ("config", "ranks", "message"),
    [
        (ModelConfig("moe", 32, 2, 4, 8, 24, 31, 12, expert_dim=25), 2, "expert_dim 25"),
        (ModelConfig("moe", 32, 2, 4, 8, 21, 31, 12, expert_dim=24, mlp_only_layers=(1,)), 2, "mlp_dim 21"),
        (
            ModelConfig("qwen3next", 32, 2, 4, 8, 60, 31, 12, full_attention_interval=2, linear_key_heads=3),
            2,
            "linear_key_heads 3",
        ),
    ],
)
def test_sizes_that_ranks_cannot_share_are_refused_in_one_line(config, ranks, message):
    with pytest.raises(UserError, match=f"^--tp-size {ranks} does not divide the model's {message}$"):
        check_tensor_parallel(config, ranks)


def test_only_the_sizes_of_layers_that_are_there_have_to_be_divided():
    check_tensor_parallel(ModelConfig("moe", 32, 2, 4, 8, 21, 31, 12, expert_dim=24), 2)
    check_tensor_parallel(
        ModelConfig("qwen3next", 32, 2, 3, 8, 60, 31, 12, full_attention_interval=4, linear_key_heads=4), 4
    )
