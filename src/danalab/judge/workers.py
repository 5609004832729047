"""What is judged, and processes that execute its runs: one that raises, hangs or dies costs its run, and nothing else.

Each worker is a fresh process with one thread that serves many runs. A run that ends in an exception, in a death of its
process or after the time limit has a `RunResult` without a loss; a worker that died or hung is replaced.

Contestants: `adana`, `adana:kappa=0.8,omega=2`, `FILE.yaml`, `module:NAME`, `FILE.py:NAME`.

NAME is an optimizer class, or a function, called as `NAME(groups, lr=..., **settings)` with parameter groups (decayed
and not decayed). A YAML file has `opt` (any of the other forms), and settings of it beside: `{opt: adana, kappa: 0.8}`.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Thread
from typing import Any

from danalab import __version__
from danalab.errors import UserError
from danalab.files import read_yaml
from danalab.judge import JudgeConfig
from danalab.optim import optimizer_spec
from danalab.optim.catalogue import OPTIMIZERS, is_address
from danalab.optim.registry import OptimizerSpec, read_settings
from danalab.plugins import digests, source_digest


@dataclass(frozen=True)
class Contestant:
    """One side of a judgement; pickles."""

    label: str
    """What the user typed."""
    opt: str
    """A registered name, or FILE.py:NAME or module:NAME."""
    settings: tuple[tuple[str, Any], ...]
    digest: str
    """Of what else determines its runs: code of one's own, or the package's version; settings."""

    @property
    def spec(self) -> OptimizerSpec:
        return optimizer_spec(self.opt)


def read_contestant(text: str) -> Contestant:
    """The contestant that a word names; UserError: no such optimizer, file, module, name or setting."""
    if Path(text).suffix in (".yaml", ".yml"):
        content = read_yaml(text)
        if not isinstance(content, Mapping) or not isinstance(content.get("opt"), str):
            raise UserError(f"{text}: a contestant needs an optimizer, such as 'opt: adana'")
        return _contestant(text, content["opt"], {key: value for key, value in content.items() if key != "opt"})
    opt, given = _split(text)
    return _contestant(text, opt, given)


def _split(text: str) -> tuple[str, dict[str, str]]:
    """`adana:kappa=0.8,omega=2` -> ("adana", {"kappa": "0.8", "omega": "2"}); commas in a value's numbers stay."""
    head, colon, tail = text.rpartition(":")
    if not colon or "=" not in tail:
        return text, {}
    given: dict[str, str] = {}
    for word in tail.split(","):
        name, equals, value = word.partition("=")
        if equals:
            given[name.strip()] = value.strip()
        elif given:  # betas=0.9,0.99
            given[list(given)[-1]] += f",{word}"
        else:
            raise UserError(f"contestant '{text}': '{word}' is no setting; write NAME:SETTING=VALUE,...")
    return head, given


def _contestant(label: str, opt: str, given: Mapping[str, Any]) -> Contestant:
    spec = optimizer_spec(opt)
    if spec.closure or spec.hessian:
        raise UserError(f"contestant '{label}': the step of {spec.name} needs more than gradients; it cannot be judged")
    settings = read_settings(spec, given)
    plugin = "" if is_address(opt) else OPTIMIZERS.plugin(opt)
    code = source_digest(opt) if is_address(opt) else digests().get(plugin, f"danalab {__version__}")
    what = json.dumps([code, spec.name, settings], sort_keys=True, default=str)
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return Contestant(label, spec.name, tuple(settings.items()), digest)


@dataclass(frozen=True)
class PlannedRun:
    """A run to make; equal trials give equal results."""

    track: str
    steps: int
    contestant: Contestant
    lr: float
    """Peak learning rate."""
    seed: int

    @property
    def key(self) -> str:
        """Its name in the ledger."""
        return f"{self.track}/{self.steps}/{self.contestant.digest}/lr{self.lr:.6g}/s{self.seed}"


@dataclass(frozen=True)
class RunResult:
    """What a run ended with."""

    loss: float | None
    """The last measurement; None: it diverged or failed."""
    steps: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    """Measurements after `steps` steps; the first before any."""
    seconds: float = 0.0
    failure: str | None = None
    """Why it failed, in one line."""
    from_outside: bool = False
    """It was killed or ran out of time, which says nothing of a repetition: the next judgement tries it again."""


class Workers:
    """`jobs` processes; as a context, which ends them."""

    def __init__(self, jobs: int):
        self._jobs = jobs
        self._workers: list[_Worker] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def execute(self, trials: Iterable[PlannedRun], limit: float) -> Iterator[tuple[PlannedRun, RunResult]]:
        """Make runs; each with its result as it ends.

        `limit`: time of a run [s]; the first of a process has more, for torch and data.
        """
        waiting = list(trials)
        while len(self._workers) < min(self._jobs, len(waiting)):
            self._workers.append(_Worker())
        while waiting or any(worker.trial for worker in self._workers):
            for worker in self._workers:
                if waiting and worker.trial is None:
                    worker.start(waiting.pop(0), limit)
            ready = wait([each.pipe for each in self._workers if each.trial], timeout=0.2)
            for i, worker in enumerate(self._workers):
                if worker.trial is None:
                    continue
                if worker.pipe in ready:
                    trial, result, alive = worker.take()
                elif time.monotonic() > worker.deadline:
                    trial, alive, why = worker.trial, False, f"did not end in {limit:.0f} s and was killed"
                    result = RunResult(None, seconds=limit, failure=why, from_outside=True)
                else:
                    continue
                if not alive:
                    worker.kill()
                    self._workers[i] = _Worker()
                yield trial, result


class ExecutorWorkers:
    """Runs at an executor, each in a fresh process there; as a context, which ends them."""

    def __init__(self, executor: Executor):
        self._executor = executor

    @classmethod
    def open(cls, config: JudgeConfig) -> "ExecutorWorkers":
        """Those of the executor that a judgement names."""
        from danalab.ladder.runs.cluster import Cluster
        from danalab.ladder.runs.sweep import open_executor
        from danalab.train.system.slurm import Resources

        cluster = Cluster(resources=Resources(gpus=0, cpus=1, time="60"), at_once=config.jobs or 2)
        return cls(open_executor(config.executor, config.ledger, cluster=cluster))

    def __enter__(self) -> "ExecutorWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def execute(self, trials: Iterable[PlannedRun], limit: float) -> Iterator[tuple[PlannedRun, RunResult]]:
        """As `Workers.execute`, in the order of `trials`."""
        futures = [(trial, self._executor.submit(execute_one, trial, limit)) for trial in trials]
        for trial, future in futures:
            try:
                yield trial, future.result()
            except Exception as error:
                why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                yield trial, RunResult(None, failure=why, from_outside=True)


def execute_one(trial: PlannedRun, limit: float) -> RunResult:
    """The result of a run that is made in a process of its own."""
    with Workers(1) as workers:
        ((_, result),) = workers.execute([trial], limit)
    return result


class _Worker:
    """A process that makes one run after another."""

    STARTING = 120.0  # further time of a first run, for torch and the data [seconds]

    def __init__(self) -> None:
        context = get_context("spawn")  # threads of torch do not survive a fork
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._fresh = True
        self.trial: PlannedRun | None = None
        self.deadline = 0.0

    def start(self, trial: PlannedRun, limit: float) -> None:
        self.trial = trial
        self.deadline = time.monotonic() + limit + (self.STARTING if self._fresh else 0)
        self._fresh = False
        self.pipe.send(trial)

    def take(self) -> tuple[PlannedRun, RunResult, bool]:
        """The trial, its result, and whether the process lives on."""
        trial, self.trial = self.trial, None
        assert trial is not None
        try:
            return trial, self.pipe.recv(), True
        except (EOFError, OSError):
            self._process.join(timeout=5.0)
            code = self._process.exitcode or 0
            return trial, RunResult(None, failure=f"its process died (exit code {code})", from_outside=code < 0), False

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    Thread(target=_end_with_the_judge, daemon=True).start()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)  # what an optimizer prints is not the verdict
    os.dup2(silent, 2)
    while True:
        try:
            trial: PlannedRun = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        pipe.send(_run(trial))


def _end_with_the_judge() -> None:
    """End when the judge does, also in the middle of a run that never would."""
    judge = parent_process()
    assert judge is not None
    judge.join()
    os._exit(1)


def _run(trial: PlannedRun) -> RunResult:
    from danalab.judge.tracks import get_track
    from danalab.showcase.trials import train

    began = time.perf_counter()
    try:
        settings: dict[str, Any] = dict(trial.contestant.settings)
        done = train(get_track(trial.track, trial.steps), trial.contestant.spec, trial.lr, trial.seed, settings)
    except Exception as error:
        failure = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return RunResult(None, seconds=time.perf_counter() - began, failure=failure)
    seconds = time.perf_counter() - began
    loss, failure = (done.loss, None) if done.loss < float("inf") else (None, "diverged")
    return RunResult(loss, done.steps, done.losses, seconds, failure)
