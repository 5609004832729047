"""A CUDA device that is a CPU: the lines that a GPU runs, with their numbers, on a machine without one.

    with pretend_gpu():
        x = torch.ones(3, device="cuda")       # x.is_cuda, and x.numpy() raises; its memory is the host's

Each storage knows which of the two devices it is on; a result is where its arguments are. Streams are one, events read
the host's clock, a CUDA graph repeats the operations that it saw, autocast is the CPU's, and NCCL is gloo. Compilers
are not run: what `torch.compile` takes runs eagerly.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils import _triton
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from danalab.optim.step.backends import triton_step

NAME = "NVIDIA H100 80GB HBM3"
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_PARSE_TO = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
_HOST_ONLY = {Tensor.numpy, Tensor.__array__}
_MOVES = {Tensor.to, Tensor.cpu, Tensor.cuda, torch.as_tensor, torch.asarray}
_graphs: list[Graph] = []
"""Those that are being captured."""


def is_on_gpu(x: Tensor) -> bool | None:
    """Whether a tensor's memory is the device's; None: it was made where nobody looked."""
    try:
        return getattr(x.untyped_storage(), "is_on_gpu", None)
    except (NotImplementedError, RuntimeError):  # it has no storage
        return None


class PretendGpu(TorchFunctionMode):
    """Calls of torch in which "cuda" is a mark on a storage."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.device, _PARSE_TO):  # they only name one
            return func(*args, **kwargs)
        if (answer := _ATTRIBUTES.get(func)) is not None:
            return answer(args[0])
        if func in _HOST_ONLY and is_on_gpu(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        pinned = kwargs.pop("pin_memory", False)
        inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        asked = kwargs.get("device") if kwargs.get("device") is not None else next(filter(_is_device, args), None)
        asked = CPU if func is Tensor.cpu else CUDA if func is Tensor.cuda else asked
        if func is Tensor.cuda:
            func, args, kwargs = Tensor.to, (args[0], CPU), {}
        args, kwargs = tree_map(_on_host, (args, kwargs))
        result = func(*args, **kwargs)
        if asked is not None:
            gpu = torch.device(asked).type == "cuda"
        elif func is Tensor.to and len(inputs) == 2:  # where the other one is
            gpu = bool(is_on_gpu(inputs[1]))
        else:
            gpu = any(map(is_on_gpu, inputs))
        if func in _MOVES and isinstance(result, Tensor) and bool(is_on_gpu(result)) != gpu:
            result = result.clone()
        for x in tree_flatten(result)[0]:
            if isinstance(x, Tensor) and is_on_gpu(x) is None:
                with contextlib.suppress(NotImplementedError, RuntimeError):
                    storage: Any = x.untyped_storage()
                    storage.is_on_gpu, storage.is_pinned_here = gpu, pinned
        return result


def _is_device(x: Any) -> bool:
    return isinstance(x, torch.device) or (isinstance(x, str) and x.partition(":")[0] in ("cuda", "cpu"))


def _on_host(x: Any) -> Any:
    return CPU if _is_device(x) and torch.device(x).type == "cuda" else x


_tensor: Any = Tensor
_ATTRIBUTES: dict[Any, Callable[[Tensor], Any]] = {
    _tensor.device.__get__: lambda x: CUDA if is_on_gpu(x) else x.device,
    _tensor.is_cuda.__get__: lambda x: bool(is_on_gpu(x)),
    _tensor.is_cpu.__get__: lambda x: not is_on_gpu(x) and x.is_cpu,
    Tensor.is_pinned: lambda x: getattr(x.untyped_storage(), "is_pinned_here", False),
    Tensor.get_device: lambda x: 0 if is_on_gpu(x) else -1,
    Tensor.record_stream: lambda x: None,
}


class Graph:
    """The operations of a capture; a replay writes their results where the capture's results are."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        """Repeat them."""
        with torch.no_grad():
            for func, args, kwargs, result in self.operations:
                for new, old in zip(tree_flatten(func(*args, **kwargs))[0], tree_flatten(result)[0], strict=True):
                    if isinstance(old, Tensor) and new.data_ptr() != old.data_ptr():
                        old.copy_(new)


class _Capture(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        _graphs[-1].operations.append((func, args, kwargs or {}, result))
        return result


@contextlib.contextmanager
def _capture(graph: Graph) -> Iterator[None]:
    _graphs.append(graph)
    try:
        with _Capture():
            yield
    finally:
        _graphs.pop()


class Launches:
    """`triton_kernel`, in Triton's interpreter; launches within a capture are operations of the graph."""

    def __init__(self, module: Any):
        self.BLOCK, self.WARPS, self.DTYPES = module.BLOCK, module.WARPS, module.DTYPES
        self._kernel, self.update = module.update, self

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            with _disable_current_modes():  # the interpreter's own operations are none of the graph
                self._kernel[grid](*args, **kwargs)
            if _graphs:
                _graphs[-1].operations.append((launch, args, kwargs, None))

        return launch


class Event:
    """A moment of the host."""

    def __init__(self, **_: Any):
        self.seconds = 0.0

    def record(self, *_: Any) -> None:
        """Now."""
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return 1e3 * (end.seconds - self.seconds)

    def query(self) -> bool:
        """Nothing is ever pending."""
        return True

    synchronize = wait = query


class Stream:
    """All are one."""

    device, device_index, cuda_stream = CUDA, 0, 0

    def __init__(self, *_: Any, **__: Any):
        pass

    def record_event(self, event: Event | None = None) -> Event:
        """At once."""
        event = event or Event()
        event.record()
        return event

    def synchronize(self, *_: Any) -> None:
        """Nothing is pending."""

    wait_stream = wait_event = synchronize


class Generator(torch.Generator):
    """On the host."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        """Whatever the device."""
        return super().__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]


class Autocast(torch.autocast):
    """The CPU's."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any):
        super().__init__("cpu", *args, **kwargs)


def _with_mode(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with PretendGpu():  # `backward` is a call of torch, which takes the mode off for as long as it runs
            return run_backward(*args, **kwargs)

    return run


def _pin(x: Tensor) -> Tensor:
    copy = x.clone()
    storage: Any = copy.untyped_storage()
    storage.is_on_gpu, storage.is_pinned_here = False, True
    return copy


def _answers(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _of_host(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda device="cpu", *rest, **kwargs: function("cpu" if device == "cuda" else device, *rest, **kwargs)


def _start_gloo(start: Callable[..., Any]) -> Callable[..., Any]:
    def started(backend: str | None = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        start("gloo" if backend == "nccl" else backend, *args, **kwargs)

    return started


@contextlib.contextmanager
def pretend_gpu(kernels: bool = False) -> Iterator[None]:
    """One H100 in this process, and in no other.

    Args:
        kernels: the Triton kernel runs in Triton's interpreter, some milliseconds for each 1,024 elements; else
            optimizers take the way of a GPU without Triton.
    """
    if kernels:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    properties = SimpleNamespace(total_memory=80 << 30, name=NAME, major=9, minor=0, multi_processor_count=132)
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "get_device_name": NAME,
        "get_device_properties": properties, "get_device_capability": (9, 0), "is_bf16_supported": True,
        "max_memory_allocated": 1 << 30, "memory_allocated": 1 << 29, "mem_get_info": (79 << 30, 80 << 30),
        **dict.fromkeys(("init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"), None),
        **dict.fromkeys(("_lazy_init", "manual_seed_all", "set_rng_state", "set_sync_debug_mode"), None),
        "current_stream": Stream(), "default_stream": Stream(),
    }  # fmt: skip
    replaced = {name: _answers(value) for name, value in answers.items()}
    replaced |= {
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "is_current_stream_capturing": lambda: bool(_graphs),
        "device": lambda *_: contextlib.nullcontext(), "stream": lambda *_: contextlib.nullcontext(),
        "graph": lambda graph, **_: _capture(graph),
        "Event": Event, "Stream": Stream, "CUDAGraph": Graph,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        if not kernels:
            stack.enter_context(mock.patch.object(triton_step, "is_installed", return_value=False))
        for owner, name, value in (
            (torch.autograd, "_engine_run_backward", _with_mode(_engine_run_backward)),
            (Tensor, "pin_memory", _pin),  # also in a thread that reads ahead, where no mode is
            (triton_step, "_kernel", functools.cache(lambda kernel=triton_step._kernel: Launches(kernel()))),
            (torch, "Generator", Generator),
            (torch, "autocast", Autocast),
            (torch.amp.autocast_mode, "autocast", Autocast),
            (torch, "is_autocast_enabled", _of_host(torch.is_autocast_enabled)),
            (torch, "get_autocast_dtype", _of_host(torch.get_autocast_dtype)),
            (torch.accelerator, "is_available", lambda: False),  # a build for CUDA asks the driver for its stream
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (_triton, "has_triton", inspect.unwrap(_triton.has_triton)),  # what it says here is not to be remembered
            (dist, "init_process_group", _start_gloo(dist.init_process_group)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        # Recomputed tensors are compared with those of the forward pass, where the mode is off within a call.
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        stack.enter_context(mock.patch.dict(checks, default=lambda x: {"shape": x.shape, "dtype": x.dtype}))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(PretendGpu())
        yield
