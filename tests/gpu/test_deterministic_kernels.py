"""With --deterministic no operation is called that raises on a GPU then (see `torch.use_deterministic_algorithms`).

A CPU has deterministic kernels for all of them: the calls are watched instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from danalab.inference import Request, SamplingParameters
from danalab.inference.request import RequestState
from danalab.inference.sampling import draw
from danalab.models import build_model
from danalab.optim import build_optimizer
from danalab.scaling.architectures import ARCHITECTURES
from danalab.train.statistics import update_statistics
from models.architectures import LENGTH, VOCAB, tiny

CONFIGS = {
    **{arch: tiny(arch) for arch in ARCHITECTURES.names()},
    "delta-rule": tiny("qwen3next", n_layers=4, full_attention_interval=4),
}
RAISE = {"histc", "put_", "median.dim", "nll_loss2d_forward", "kthvalue", "_ctc_loss", "_embedding_bag"}


class Watch(TorchDispatchMode):
    """Collects the operations that would raise."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.")
        wide = name.startswith(("cumsum", "cumprod")) and (args[0].is_floating_point() or args[0].is_complex())
        weighted = name.startswith("bincount") and ((len(args) > 1 and args[1] is not None) or "weights" in kwargs)
        product = name.startswith("scatter_reduce") and "prod" in args
        if wide or weighted or product or name in RAISE or name.removesuffix(".default") in RAISE:
            self.found.add(name)
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_the_watch_sees_a_sum_that_would_raise():
    with Watch() as watch:
        torch.ones(3).cumsum(0)
        torch.ones(3).histc()
        torch.ones(3, dtype=torch.int64).cumsum(0)
    assert watch.found == {"cumsum.default", "histc.default"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_training_step_of_every_architecture(config):
    model = build_model(config, seed=4)
    optimizer = build_optimizer("dana-star-mk4", model, lr=1e-3)
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with Watch() as watch:
        ce, lse2 = model(tokens, tokens.roll(-1, 1))
        (ce + 1e-4 * lse2).backward()
        optimizer.step()
    assert not watch.found


def test_documents_in_the_delta_rule():
    model = build_model(CONFIGS["delta-rule"], seed=4)
    model.document_token = 0
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with Watch() as watch:
        model(tokens, tokens)[0].backward()
    assert not watch.found


def test_statistics_of_updates():
    with Watch() as watch:
        update_statistics(torch.ones(3, 4).double(), torch.full((3, 4), 2.0).double())
    assert not watch.found


@pytest.mark.parametrize("deterministic_only", [True, False])
def test_tokens_are_drawn_on_the_host_where_a_gpu_could_not(deterministic_only, monkeypatch):
    torch.use_deterministic_algorithms(deterministic_only)
    moved: list[torch.device] = []
    real = torch.Tensor.to

    def spy(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        moved.extend(each for each in args if isinstance(each, torch.device))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    row = RequestState(0, Request([0], SamplingParameters(seed=1)), 1, frozenset(), 1000)
    with torch.device("meta"):
        logits = torch.ones(1, 5)
    if deterministic_only:
        with pytest.raises(NotImplementedError, match="meta"):  # a copy to the host, which has nothing to copy
            draw(logits, [row])
        assert moved == [torch.device("cpu")]
    else:
        with pytest.raises(RuntimeError):
            draw(logits, [row])
        assert moved == [torch.device("meta")]
