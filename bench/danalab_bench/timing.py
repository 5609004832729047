"""Timing: interleaved rounds, and medians with quartiles.

Contenders alternate in every round, so that a slow moment of the machine affects all of them; a ratio is the median
over rounds of the ratio within a round.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, TypeVar

from danalab.hardware import available_cores, host_memory
from danalab.native_library import instruction_sets, processor, target

WARM_UP = 3
"""Rounds that are not counted, for caches, allocators, compilers and threads."""

Work = Callable[[], Any]
Say = Callable[[str], None]
"""Takes each line of progress."""
Time = TypeVar("Time")


def pin_threads(threads: int) -> None:
    """Pin each thread to its own core, for the rest of the process; call it before torch starts its threads.

    Two threads on one core wait for each other for milliseconds, which would be measured instead of the work.
    """
    if "torch" not in sys.modules:  # the thread library reads these once
        os.environ.setdefault("OMP_PROC_BIND", "true")
        os.environ.setdefault("OMP_PLACES", "cores")
    import torch

    torch.set_num_threads(threads)


def interleaved(
    work: Mapping[str, Work], rounds: int, clock: Callable[[Work], Time], warm_up: int = WARM_UP
) -> dict[str, list[Time]]:
    """What the clock says of each contender in each of `rounds` rounds; each round starts with another contender."""
    times: dict[str, list[Time]] = {name: [] for name in work}
    names = list(work)
    for number in range(rounds + warm_up):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            took = clock(work[name])
            if number >= warm_up:
                times[name].append(took)
    return times


def wall_clock(work: Work) -> float:
    """Seconds on the host."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def thread_clock(work: Work) -> float:
    """Processor seconds of this thread: on a shared machine the time of other processes does not count."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def cuda_clock(work: Work) -> float:
    """Seconds on the device from an idle start, including launches that kernels wait for, as in a real step."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def waiting_clock(device: str) -> Callable[[Work], float]:
    """Seconds on the host from an idle device until it is idle again: for work in which the host takes part."""

    def clock(work: Work) -> float:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        return time.perf_counter() - start

    return clock


def synchronize(device: str) -> None:
    """Wait until the device is idle."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def clock_of(device: str) -> Callable[[Work], float]:
    """The clock for work on a device type."""
    return cuda_clock if device == "cuda" else wall_clock


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of mine / theirs, round by round."""
    return spread([a / b for a, b in zip(mine, theirs, strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) < 2:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, _, q3 = quantiles(values, n=4, method="inclusive")
    return {"median": median(values), "q1": q1, "q3": q3}


def memory_bytes(device: str) -> int:
    """Memory of the device."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_properties(0).total_memory
    return host_memory()


def machine(device: str) -> dict[str, Any]:
    """Facts about the machine, and how the process uses it."""
    import torch  # not before `pin_threads`

    lines = [line.partition(":") for line in processor().splitlines()]
    known = {key.strip(): value.strip() for key, _, value in lines}
    name = known.get("model name", platform.processor() or platform.machine())
    kind = [
        f"{word} {known[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in known
    ]
    policies = {os.SCHED_OTHER: "shared", os.SCHED_FIFO: "real-time: other processes wait"}
    facts: dict[str, Any] = {
        "cpu": ", ".join((name, *kind)),  # clouds give processors of different generations the same name
        "isa": (instruction_sets() or [platform.machine()])[-1],
        "target": target(),
        "torch_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "pinned": os.environ.get("OMP_PROC_BIND"),
        "scheduling": policies.get(os.sched_getscheduler(0), "other"),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
    }
    if device == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts
