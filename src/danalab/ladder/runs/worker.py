"""`python -m danalab.ladder.runs.worker`: a warm process that starts runs without importing torch again for each.

It imports the trainer once and forks a child for each run, so that a crash ends that run only. The pool writes requests
to its standard input and reads answers from its standard output, a JSON object a line:

    {"job": 3, "command": [...], "log": "log.txt", "environment": {...}, "threads": 1}      {"job": 3, "pid": 99}
                                                                                            {"job": 3, "code": 0}
    {"settings": {...}, "threads": [1, 2]}                                                  {"speeds": {"1": 5e4, ...}}

When its input ends (the pool is done, or was killed), it sends SIGTERM to its children, which save a checkpoint, and
waits for them: no run outlives the pool.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.1
SPEED_SECONDS = 0.5  # how long each number of threads is measured


class WarmProcess:
    """The pool's side: starts the process, sends requests, reads answers."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C on a terminal reaches the pool alone, which then stops the runs once.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "danalab.ladder.runs.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._pids: dict[int, int] = {}
        self._codes: list[tuple[int, int]] = []
        visible = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
        count = self._read_until("devices")["devices"]
        self.devices = visible[:count] or [str(i) for i in range(count)]
        """Names of the GPUs, as CUDA_VISIBLE_DEVICES takes them."""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start(
        self, index: int, command: Sequence[str], log: Path, environment: Mapping[str, str], threads: int | None
    ) -> None:
        """Start a run; `ended` tells of its end."""
        self._pids[index] = 0
        self._send(job=index, command=list(command), log=str(log), environment=dict(environment), threads=threads)

    def ended(self) -> list[tuple[int, int]]:
        """(index, exit code) of the runs that ended since the last call; all of them where the process has died."""
        while select.select([self._output], [], [], 0)[0] and self._read():
            pass
        if not self.is_alive:
            for index, pid in self._pids.items():
                with contextlib.suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGTERM)
                self._codes.append((index, self._process.returncode))
            self._pids.clear()
        ended, self._codes = self._codes, []
        return ended

    def tokens_per_second(self, settings: Mapping[str, Any], threads: Sequence[int]) -> dict[int, float]:
        """See `measure_threads`; empty where the settings cannot run."""
        self._send(settings=dict(settings), threads=list(threads))
        return {int(count): speed for count, speed in self._read_until("speeds")["speeds"].items()}

    def close(self) -> None:
        """Stop all runs and the process, and wait for them."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self._process.wait()
        self._output.close()

    def _send(self, **request: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # a dead process is found by `ended`
            self._input.write(json.dumps(request, default=str).encode() + b"\n")
            self._input.flush()

    def _read(self) -> dict[str, Any]:
        line = self._output.readline()
        answer = json.loads(line) if line else {}
        if "pid" in answer:
            self._pids[answer["job"]] = answer["pid"]
        elif "code" in answer:
            self._pids.pop(answer["job"])
            self._codes.append((answer["job"], answer["code"]))
        return answer

    def _read_until(self, key: str) -> dict[str, Any]:
        while answer := self._read():
            if key in answer:
                return answer
        raise RuntimeError(f"the worker process ended with exit code {self._process.wait()}; see the messages above")


def main() -> None:
    """Serve requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool handles Ctrl-C
    for module in ("danalab.cli.training", "danalab.train.job", "torch._dynamo"):  # the last by torch's first optimizer
        import_module(module)  # what a run needs, once for all

    children: dict[int, int] = {}
    _answer({"devices": _in_child(_device_count)})
    pending = b""
    try:
        while True:
            ready, _, _ = select.select([0], [], [], POLL_SECONDS)
            if ready:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    _serve(json.loads(line), children)
            _reap(children)
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while children:
            _reap(children)
            time.sleep(POLL_SECONDS)


def _serve(request: dict[str, Any], children: dict[int, int]) -> None:
    if "job" not in request:
        try:
            speeds = _in_child(lambda: measure_threads(request["settings"], request["threads"]))
        except RuntimeError:  # settings that cannot run: the run itself says why
            speeds = {}
        _answer({"speeds": speeds})
        return
    pid = _fork(lambda: _run(request), request["log"])
    children[pid] = request["job"]
    _answer({"job": request["job"], "pid": pid})


def _reap(children: dict[int, int]) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _answer({"job": children.pop(pid), "code": os.waitstatus_to_exitcode(status)})


def _answer(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the pool is gone; the input ends as well
        print(json.dumps(message), flush=True)


def _run(request: dict[str, Any]) -> int:
    """Become `python -m danalab ...` without starting Python again; any other command is executed."""
    import torch

    os.environ.update(request["environment"])
    if request["threads"]:
        os.environ["OMP_NUM_THREADS"] = str(request["threads"])
        torch.set_num_threads(request["threads"])
    command = request["command"]
    if command[:3] != [sys.executable, "-m", "danalab"] or sys.platform == "darwin":  # there a fork must exec
        os.execvp(command[0], command)
    sys.argv = command[2:]
    runpy.run_module("danalab", run_name="__main__", alter_sys=True)
    return 0


def _fork(work: Callable[[], int], log: str) -> int:
    """Start a child that does `work` with its output in `log`; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for source, target in ((null, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        code = work()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _in_child(work: Callable[[], Any]) -> Any:
    """The result of `work`, done in a child: a process that has used a GPU or threads must not fork."""
    reading, writing = os.pipe()

    def send() -> int:
        os.write(writing, json.dumps(work()).encode())
        return 0

    pid = _fork(send, os.devnull)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    if not data:
        raise RuntimeError("the child ended without a result")
    return json.loads(data)


def _device_count() -> int:
    import torch

    return torch.cuda.device_count()


def measure_threads(settings: dict[str, Any], candidates: list[int]) -> dict[str, float]:
    """Tokens a second of forward and backward passes of a run's model with each number of threads, on the CPU."""
    import torch

    from danalab.data import vocabulary_of
    from danalab.ladder.runs.grid import Cell
    from danalab.models import build_model
    from danalab.models.layers.precision import onednn_products
    from danalab.train.config.resolve import resolve

    config = Cell("speed", settings).config(Path())
    resolved = resolve(config, vocabulary_of(config.source, config.tokenizer))
    model = build_model(resolved.model, seed=0)
    tokens = torch.randint(resolved.model.vocab_size, (config.batch_size or 1, resolved.model.seq_len))
    speeds = {}
    with onednn_products(enabled=config.onednn):
        for threads in candidates:
            torch.set_num_threads(threads)
            passes, began = -1, time.perf_counter()
            while passes < 1 or time.perf_counter() - began < SPEED_SECONDS:
                model(tokens, tokens)[0].backward()
                passes += 1
                if passes == 0:  # the first pass warms up
                    began = time.perf_counter()
            speeds[str(threads)] = passes * tokens.numel() / (time.perf_counter() - began)
    return speeds


if __name__ == "__main__":
    main()
