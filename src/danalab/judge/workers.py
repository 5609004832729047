"""What is judged, and its runs: one that raises, hangs or dies costs its run, and nothing else.

A run that ends in an exception, in a death of its process or after the time limit has a `RunResult` without a loss.

Contestants: `adana`, `adana:kappa=0.8,omega=2`, `FILE.yaml`, `module:NAME`, `FILE.py:NAME`.

NAME is an optimizer class, or a function, called as `NAME(groups, lr=..., **settings)` with parameter groups (decayed
and not decayed). A YAML file has `opt` (any of the other forms), and settings of it beside: `{opt: adana, kappa: 0.8}`.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from danalab import __version__
from danalab.errors import UserError
from danalab.files import read_yaml
from danalab.optim.build import read_settings
from danalab.plugins import source_digest
from danalab.scaling.optimizers import canonical_name, is_address
from danalab.sweep.executors import as_completed
from danalab.sweep.processes import ProcessDied, ProcessPool, TimedCall


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
    parts = re.match(r"(.*?):\s*([\w-]+\s*=.*)", text, re.DOTALL)  # a value may have colons: age=FILE.py:NAME
    if parts is None:
        return text, {}
    (head, tail), given = parts.groups(), dict[str, str]()
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
    name = canonical_name(opt)
    if name == "sophia":
        raise UserError(f"contestant '{label}': the step of {name} needs more than gradients; it cannot be judged")
    settings = read_settings(name, given)
    code = source_digest(opt) if is_address(opt) else f"danalab {__version__}"
    what = json.dumps([code, name, settings], sort_keys=True, default=str)
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return Contestant(label, name, tuple(settings.items()), digest)


def without(side: Contestant, part: str) -> Contestant:
    """A contestant with one setting at the optimizer's own value."""
    rest = {name: value for name, value in side.settings if name != part}
    return _contestant(f"{side.label} without {part}", side.opt, rest)


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
    """Where runs are made: so many processes here, or an executor; as a context, which ends them."""

    def __init__(self, executor: int | Executor):
        self._executor = ProcessPool(executor) if isinstance(executor, int) else executor

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def execute(self, trials: Iterable[PlannedRun], limit: float) -> Iterator[tuple[PlannedRun, RunResult]]:
        """Make runs, each for `limit` seconds at most; each with its result as it ends."""
        waiting = {self._executor.submit(TimedCall(run_trial, (trial,), limit)): trial for trial in trials}
        for future in as_completed(self._executor, waiting):
            yield waiting[future], _result(future, limit)


def _result(future: Future[RunResult], limit: float) -> RunResult:
    try:
        return future.result()
    except TimeoutError:
        why = f"did not end in {limit:.0f} s and was killed"
        return RunResult(None, seconds=limit, failure=why, from_outside=True)
    except ProcessDied as died:
        return RunResult(None, failure=f"its process died (exit code {died.code})", from_outside=died.code < 0)
    except Exception as error:
        return RunResult(None, failure=_words(error), from_outside=True)


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def run_trial(trial: PlannedRun) -> RunResult:
    """Make a run in this process."""
    from danalab.judge.tracks import get_track
    from danalab.showcase.trials import train

    began = time.perf_counter()
    try:
        settings: dict[str, Any] = dict(trial.contestant.settings)
        done = train(get_track(trial.track, trial.steps), trial.contestant.spec, trial.lr, trial.seed, settings)
    except Exception as error:
        return RunResult(None, seconds=time.perf_counter() - began, failure=_words(error))
    seconds = time.perf_counter() - began
    loss, failure = (done.loss, None) if done.loss < float("inf") else (None, "diverged")
    return RunResult(loss, done.steps, done.losses, seconds, failure)
