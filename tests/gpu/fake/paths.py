"""The paths of a GPU on tensors that say they are on one: devices, dtypes and shapes fit, and no number is read.

`FakeTensorMode` raises where an operation mixes devices or needs a number. `test_device.py` runs this file in a
process that has a CUDA device made of nothing (device.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from danalab.inference import Engine, Request, SamplingParameters
from danalab.inference import engine as engine_module
from danalab.inference.sampling import DrawnTokens, _invert, _truncated
from danalab.models import Decoder, ModelConfig, build_model
from danalab.models.decoder import materialise
from danalab.models.moe import experts as grouped
from danalab.optim import DistributedMuonAdamW, build_optimizer, optimizer_spec
from danalab.optim.step.backends import triton_step
from danalab.optim.step.batch import TensorBatch as ParameterBatch
from danalab.scaling.architectures import ARCHITECTURES
from danalab.train.checkpoint.saver import HostCopies
from danalab.train.parallel.world import World
from danalab.train.step import memory
from danalab.train.step.gradients import GradientStep, LossScale, UpdateNorm
from danalab.train.step.loss import CrossEntropy, RouterBalance, TrainingBatch
from danalab.train.step.memory import check_memory
from danalab.train.step.optimizer_driver import OptimizerDriver
from models.architectures import LENGTH, VOCAB, tiny

CUDA = torch.device("cuda", 0)
CONFIGS = {
    **{arch: tiny(arch) for arch in ARCHITECTURES.names()},
    "grouped": tiny("qwen3", n_kv_heads=2),
    "delta-rule": tiny("qwen3next", n_layers=4, full_attention_interval=4),
}
NAMES = (
    *("adana", "dana-mk4", "dana-star", "dana-star-mk4", "adamw-decaying-wd"),
    *("ademamix", "auto-dana", "dana", "sign-dana"),
)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """One H100; every tensor that a test makes is fake."""
    properties = SimpleNamespace(total_memory=80 << 30, name="NVIDIA H100 80GB HBM3", major=9, minor=0)
    for name, answer in {
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (9, 0),
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "max_memory_allocated": 1 << 30,
        "empty_cache": None,
        "get_rng_state": None,
        "current_stream": SimpleNamespace(synchronize=lambda: None),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


class Counted(CrossEntropy):
    """Its batches, which are fake, have no targets to count."""

    def denominators(self, batch: TrainingBatch) -> list[float]:
        return [float(batch.targets.numel())] * 2


def model_of(config: ModelConfig, dtype: torch.dtype = torch.float32) -> Decoder:
    """As `build_model`; torch moves no module of fake tensors."""
    with unset_fake_temporarily():
        model = build_model(config, device="meta", dtype=dtype)
    materialise(model, "cuda")
    model.init_weights(torch.Generator().manual_seed(0))
    return model


def batch_of(rows: int = 4) -> TrainingBatch:
    return TrainingBatch(torch.zeros(rows, LENGTH, dtype=torch.int64), torch.zeros(rows, LENGTH, dtype=torch.int64))


def step_of(model: Decoder, dtype: torch.dtype | None = torch.bfloat16, **settings: Any) -> GradientStep:
    balance = RouterBalance(model.config, CUDA) if model.config.sparsity else None
    return GradientStep(
        model,
        list(model.parameters()),
        micro_batch=2,
        seq_len=LENGTH,
        grad_clip=0.5,
        loss=Counted(1e-4, balance=balance),
        autocast=partial(torch.autocast, "cuda", dtype or torch.bfloat16, enabled=dtype is not None),
        **settings,
    )


def assert_on_gpu(*tensors: Tensor | None) -> None:
    assert all(tensor is not None and tensor.device == CUDA for tensor in tensors)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_step_of_every_architecture(config):
    model = model_of(config)
    optimizer = build_optimizer("adana", model, lr=1e-3, capturable=True)
    driver, step, norm = OptimizerDriver(optimizer), step_of(model), UpdateNorm(list(model.parameters()))
    for _ in range(2):
        norm.before()
        result = step(batch_of())
        driver.step(result.finite)
        assert_on_gpu(result.loss, result.grad_norm, result.finite, norm.after())
        assert_on_gpu(*(p.grad for p in model.parameters() if p.grad is not None))
        driver.zero_grad()


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("name", ["enoki", "moe", "delta-rule"])
def test_activation_checkpointing(name, mode):
    model = model_of(CONFIGS[name])
    model.set_activation_checkpointing(mode)
    assert_on_gpu(step_of(model)(batch_of()).loss)


@pytest.mark.parametrize("name", ["enoki", "grouped", "delta-rule"])
def test_documents(name):
    model = model_of(CONFIGS[name])
    model.document_token = 0
    assert_on_gpu(step_of(model)(batch_of()).loss)


def test_float16_has_a_scale():
    model = model_of(tiny("enoki"))
    scale = LossScale(CUDA)
    result = step_of(model, torch.float16, loss_scale=scale)(batch_of())
    assert_on_gpu(result.scale, scale.value)


def test_the_memory_check(monkeypatch):
    monkeypatch.setattr(memory, "random_state", dict)
    monkeypatch.setattr(memory, "restore_random_state", lambda state: None)
    model = model_of(tiny("enoki"))
    driver = OptimizerDriver(build_optimizer("adana", model, lr=1e-3))
    gradients = step_of(model)
    gradients.of_labels = lambda batch: gradients._accumulate(batch, Counted())[2][0]
    assert check_memory(gradients, driver, device=CUDA) == 1.0


@pytest.mark.parametrize("name", ["enoki", "grouped", "delta-rule", "moe", "resonance"])
def test_the_engine_computes_prompts_and_tokens(name, monkeypatch):
    def first(logits: Tensor, sequences: Any, plain: Any) -> DrawnTokens:
        assert_on_gpu(logits)
        assert plain is None
        assert logits.shape == (len(sequences), VOCAB)
        return DrawnTokens([1] * len(sequences), [0.0] * len(sequences), [()] * len(sequences))

    monkeypatch.setattr(engine_module, "draw", first)
    model = model_of(CONFIGS[name], torch.bfloat16).eval()
    parameters = SamplingParameters(max_tokens=4, temperature=0)
    requests = [Request(prompt, parameters) for prompt in ([3, 1, 4], [1, 5], [9, 2, 6, 5, 3])]
    done = Engine(model, max_batch_size=2).generate(requests)
    assert [each.tokens for each in done] == [[1] * 4] * 3


def test_tokens_are_chosen_where_the_logits_are():
    settings = [SamplingParameters(top_k=5, top_p=0.9, min_p=0.1), SamplingParameters()]
    logits = _truncated(torch.zeros(2, VOCAB, device="cuda"), settings)
    tokens = _invert(logits, torch.tensor([0.1, 0.2], dtype=torch.float64, device="cuda"))
    assert_on_gpu(tokens)
    assert tokens.dtype == torch.int64


def know_steps(optimizer: torch.optim.Optimizer) -> None:
    """The host reads its step counts, so these must be numbers."""
    for entry in optimizer.state.values():
        entry["step"] = torch.tensor(3)


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    params = [torch.zeros(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in ((40, 30), (7,))]
    for p in params:
        p.grad = torch.zeros_like(p)
    return params


@pytest.mark.parametrize("flags", [{}, {"fused": False}, {"foreach": False, "fused": False}], ids=str)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_optimizers_step(name, capturable, flags):
    params = parameters(torch.bfloat16)
    decay = {} if name == "ademamix" else {"omega": 2.0, "horizon": 100}
    optimizer: Any = build_optimizer(name, params, lr=0.05, capturable=capturable, **decay, **flags)
    if capturable:
        optimizer.param_groups[0]["lr"] = torch.full((), 0.05, device="cuda")
    else:
        know_steps(optimizer)
    optimizer.step(found_nonfinite=torch.zeros((), dtype=torch.bool, device="cuda") if capturable else None)
    for p in params:
        moments = [value for key, value in optimizer.state[p].items() if key != "step"]
        assert_on_gpu(p, *moments)
        assert {value.dtype for value in moments} == {torch.float32}
        assert optimizer.state[p]["step"].is_cuda == capturable


@pytest.mark.parametrize("name", ["muon", "d-muon", "manau"])
def test_a_matrix_optimizers_step(name):
    with torch.device("cuda"):
        model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 24), nn.Linear(24, 11, bias=False))
    optimizer = build_optimizer(name, model, lr=0.02)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    know_steps(optimizer)
    optimizer.step()
    assert_on_gpu(*model.parameters())


class Calls(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("captures", [False, True])
def test_numbers_reach_the_device_by_one_copy_or_in_a_graph_by_fills(captures, monkeypatch):
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures)
    params = parameters()
    clock = torch.zeros(2, dtype=torch.float64, device="cuda")
    batch = ParameterBatch({}, clock, None, params, params, [], [0, 1])
    with Calls() as calls:
        values = batch.on_device([0.1, clock, 0.2, 0.3, clock[0]])
    assert_on_gpu(values)
    assert (values.shape, values.dtype) == ((5, 2), torch.float32)
    assert calls.counts["full"] == (3 if captures else 0)


@pytest.mark.parametrize("name", ["adana", "dana-star-mk4"])
def test_a_skip_of_a_sharded_step_is_not_read(name, monkeypatch):
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda self: 0)
    params = parameters()
    optimizer = OptimizerDriver(DistributedMuonAdamW(params, 0.05, optimizer=name, capturable=True))
    optimizer.step(torch.ones((), dtype=torch.bool, device="cuda"))  # FakeTensorMode refuses to read it
    assert_on_gpu(*params)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_launch_of_the_kernel_has_what_the_kernel_takes(name, capturable, skips, monkeypatch):
    """Triton is not needed: the launch is recorded."""
    launched = {}

    class Kernel:
        BLOCK, WARPS = 1024, 4

        DTYPES: ClassVar = {torch.float32: "fp32", torch.bfloat16: "bf16"}

        def __getitem__(self, grid: tuple[int]) -> Any:
            def launch(*args: Any, **kwargs: Any) -> None:
                launched.update(grid=grid, args=args, kwargs=kwargs)

            return launch

        @property
        def update(self) -> Kernel:
            return self

    monkeypatch.setattr(triton_step, "_kernel", Kernel)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.autograd.profiler.record_function("device"))
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(triton_step, "_layouts", {})
    optimizer: Any = build_optimizer(name, parameters(torch.bfloat16), lr=0.1, capturable=capturable)
    group = {**optimizer.param_groups[0], "lr": 0.07}
    rule = optimizer.rule_of(group)
    params = optimizer.param_groups[0]["params"]
    moments = [[optimizer.state[p][moment] for moment in rule.moments] for p in params]
    clock: Any = torch.tensor([3.0, 4.0], dtype=torch.float64, device="cuda") if capturable else 3
    skip = torch.zeros((), dtype=torch.bool, device="cuda") if skips else None
    batch = ParameterBatch(group, clock, skip, params, [p.grad for p in params], moments, [0, 1])
    addresses = [16 * (1 + i) for i in range((2 + len(rule.moments)) * len(params))]
    monkeypatch.setattr(torch, "repeat_interleave", lambda *_: torch.zeros(3, dtype=torch.int32))
    triton_step._launch(rule, batch, params, addresses)

    table, numbers, owners, values, flag, count, columns = launched["args"]
    assert_on_gpu(table, numbers, owners, values, flag)
    assert (table.dtype, numbers.dtype, owners.dtype, values.dtype) == (
        *(torch.int64, torch.int64, torch.int32),
        torch.float32,
    )
    assert table.shape == (len(addresses),)
    assert numbers.shape == (2, 2)
    assert (count, columns, launched["grid"]) == (2, values.shape[1], (3,))
    assert columns == (2 if capturable else 1)
    assert (flag.dtype == torch.bool) == skips
    assert launched["kwargs"]["RULE"] == rule.name
    assert launched["kwargs"]["ALIGNED"]
    assert optimizer_spec(name).name == name


@pytest.mark.parametrize("rows", [48, 0])
def test_products_by_groups_are_one_kernel_on_a_gpu_that_has_it(rows, monkeypatch):
    calls = []
    real = grouped._kernel()

    def spy(a: Tensor, b: Tensor, *, offs: Tensor) -> Tensor:
        calls.append((a.ndim, b.ndim))
        assert offs.dtype == torch.int32
        return real(a, b, offs=offs)

    monkeypatch.setattr(grouped, "_kernel", lambda: spy)
    monkeypatch.setattr(FakeTensor, "tolist", lambda self: [rows, 0, 0, 0])
    x, weight = (torch.zeros(s, device="cuda", dtype=torch.bfloat16) for s in ((rows, 16), (4, 24, 16)))
    counts = torch.zeros(4, dtype=torch.int64, device="cuda")
    y = grouped._grouped(x, weight, counts)
    assert y.shape == (rows, 24)
    back = grouped._grouped(y, weight.mT, counts)  # the gradient of x
    assert back.shape == x.shape
    assert grouped._outer._init_fn(y, x, counts).shape == weight.shape
    assert calls == ([(2, 3), (2, 3), (2, 2)] if rows else [])
    assert_on_gpu(y, back)


def test_copies_for_a_checkpoint_are_in_memory_of_the_host(monkeypatch):
    pinned = []
    real, tensors = torch.empty, {"w": torch.zeros(3, device="cuda"), "step": torch.zeros((), dtype=torch.int64)}

    def empty(*args: Any, pin_memory: bool | None = None, **kwargs: Any) -> Tensor:
        pinned.extend([] if pin_memory is None else [pin_memory])
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", empty)
    copies = HostCopies(World.single())
    copies.take(tensors)
    assert {str(value.device) for value in copies.tensors.values()} == {"cpu"}
    assert pinned == [True, False]
