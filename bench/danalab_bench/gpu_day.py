"""The GPU day: what one GPU can answer in four commands of at most nine minutes each. scripts/gpu_day.sh starts it.

    check      the tests of a GPU, then speed: optimizer steps, the trainer's MFU, checkpoints
    ladder     four optimizers at 2 and 20 million parameters, 20 tokens per parameter, two rates by transfer, two seeds
    horizon    0.3 to 5 million parameters, 20 seeds at once, 20 to 320 tokens per parameter: exponents of the gain
    long       decoding, and resonance against attention at 4k to 32k tokens

Each command is independent, goes on where it was stopped, and keeps its results in FOLDER/NAME.json after every job.
Jobs are in order of importance; one is left out where it does not fit into the time that is left at the speed measured
so far, and smaller ones after it take its place.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from danalab.errors import UserError
from danalab.files import read_json, write_json
from danalab.scaling import dimensions, flops_per_token
from danalab_bench import environment, gpu_check
from danalab_bench.gpu_runs import Job, OutOfTimeError, first_line, time_ways, train_job

OPTS = ("adana", "adamw", "dana-star-mk4", "muon")
RATES = {**dict.fromkeys(OPTS, (1.0, 0.5)), "muon": (1.0, 2.0)}
"""Two factors on the learning rate of the laws: the best ones of runs on CPUs lie between them, Muon's above its usual
rate (docs/horizon.md)."""
BEST = 0.0
"""In place of a factor: the better one of the nearest rung that was run with both."""
LANES = 12
"""Processes of the alternative to a stack of models."""
ASSUMED = {"cuda": 6e13, "cpu": 2e9}
"""FLOP/s of small models before any was measured."""
SMALL_SHARE = 0.3
"""Speed of small models, as a share of that of the trainer's benchmark [FLOP/s]."""
START_SECONDS = 12.0
"""Time of a job besides its steps: models, graph, evaluation."""
TRY_SECONDS = 60.0
"""Time that must be left to time the ways of another size: compilation."""
SECTIONS = {
    "check": {"optim": 100.0, "train": 120.0, "checkpoint": 45.0},
    "long": {"decode": 120.0, "resonance": 340.0},
}
"""Sections of `danalab bench gpu` with their time limits [s]."""
LATE = OutOfTimeError.__name__
Say = Callable[[str], None]


def ladder_jobs(small: bool) -> list[Job]:
    """Both rates at the small size, whose better one the large size takes first."""
    little, large = ((16, 1, 2, 2), (32, 2, 2, 2)) if small else ((192, 4, 3, 64), (448, 8, 7, 256))
    share = {"tokens_per_param": 0.2 if small else 20.0}
    first = [Job(opt, *little, 1.0, RATES[opt][i], (0, 1), **share) for i in (0, 1) for opt in OPTS]
    best = [Job(opt, *large, 1.0, BEST, (seed,), **share) for seed in (0, 1) for opt in OPTS]
    return first + best + [Job(opt, *large, 1.0, rate, (0,), **share) for opt in OPTS for rate in RATES[opt]]


def horizon_jobs(small: bool) -> list[Job]:
    """By rungs, so that what was run is comparable; both rates at the shortest horizon of the two smaller sizes."""
    widths = [(16, 1, 2, 2), (32, 1, 2, 2)] if small else [(64, 4, 2, 64), (128, 4, 2, 64), (256, 5, 4, 64)]
    rungs = [(0, 1.0), (0, 4.0), (0, 16.0), (1, 1.0), (1, 4.0), (2, 1.0), (1, 16.0), (2, 4.0)][: 4 if small else None]
    seeds, share = tuple(range(2 if small else 20)), {"tokens_per_param": 0.1 if small else 20.0}
    return [
        Job(opt, *widths[size], f, BEST if i is None else RATES[opt][i], seeds, **share)
        for size, f in rungs
        for i in ((0, 1) if f == 1 and size < 2 else (None,))
        for opt in OPTS
    ]


class Day:
    """One command: its results, its clock, its jobs."""

    def __init__(self, part: str, folder: Path, device: str, small: bool, minutes: float, say: Say = print):
        self.part, self.folder, self.device, self.small, self.say = part, folder, device, small, say
        self.file = folder / f"{part}.json"
        self.deadline = time.time() + 60 * minutes
        self.began = time.time()
        fresh = {"part": part, "device": device, "small": small, "machine": None, "seconds": 0.0, "rows": []}
        self.result: dict[str, Any] = read_json(self.file) if self.file.exists() else fresh
        self.before = self.result["seconds"]
        if (self.result["device"], self.result["small"]) != (device, small):
            raise UserError(f"{self.file} has results of {_kind(**self.result)}, not of {_kind(device, small)}: "
                            "another FOLDER keeps them apart")  # fmt: skip

    def keep(self, **values: Any) -> None:
        """Write the results so far."""
        self.result |= {**values, "seconds": self.before + time.time() - self.began}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.file, self.result)

    # ---- what fits ----

    def rate(self, job: Job) -> float:
        """Tokens per second of a job: measured at its size, else by the FLOPs of another, else assumed."""
        cost = job.plan.flops_per_token
        known: dict[int, list[tuple[float, float]]] = {row["params"]: [] for row in self.result["rows"]}
        for row in self.result["rows"]:
            known[row["params"]].append((row["tokens_per_second"], row["flops_per_token"]))
        if (trial := self.result.get("trials", {}).get(job.size)) is not None:
            known.setdefault(job.plan.total_params, [(trial["tokens_per_second"], cost)])
        if known:
            nearest = min(known, key=lambda params: abs(params - job.plan.total_params))
            tokens, flops = (median(column) for column in zip(*known[nearest], strict=True))
            return tokens * flops / cost
        return self._flops_per_second() / cost

    def _flops_per_second(self) -> float:
        """Of small models: a share of what `check` measured in the trainer, or assumed."""
        check = self.folder / "check.json"
        sections = read_json(check).get("sections", {}) if check.exists() else {}
        rows = [row for row in sections.get("train", {}).get("rows", []) if "tokens_per_second" in row]
        if not rows or self.small:
            return ASSUMED[self.device]
        row = rows[0]
        trained = dimensions(row["arch"], row["heads"], row["vocab_size"])
        return SMALL_SHARE * row["tokens_per_second"] * flops_per_token(trained, row["seq_len"])

    def seconds(self, job: Job) -> float:
        """Estimate of a job's time."""
        return job.tokens / self.rate(job) + self._scaled(START_SECONDS)

    def _scaled(self, seconds: float) -> float:
        return seconds * (0.1 if self.small else 1)

    def is_done(self, job: Job) -> bool:
        """Whether its rows are there."""
        kept = {(r["opt"], r["params"], r["horizon"], r["rate"], r["seed"]) for r in self.result["rows"]}
        key = (job.opt, job.plan.total_params, job.horizon, job.rate)
        return job.rate != BEST and all((*key, seed) in kept for seed in job.seeds)

    def resolved(self, job: Job) -> Job:
        """With the better of both rates where the job asks for it: by the nearest smaller rung that has both."""
        if job.rate != BEST:
            return job
        rungs: dict[tuple[int, float], dict[float, list[float]]] = {}
        for row in self.result["rows"]:
            if row["opt"] == job.opt:
                loss = float("inf") if row["loss"] is None else row["loss"]
                rungs.setdefault((row["params"], row["horizon"]), {}).setdefault(row["rate"], []).append(loss)
        both = {rung: rates for rung, rates in rungs.items() if len(rates) == 2}
        if not both:
            return replace(job, rate=RATES[job.opt][0])
        here = job.plan.total_params
        near = min(both, key=lambda rung: (abs(rung[0] - here), -rung[1] if rung[1] <= job.horizon else rung[1]))
        return replace(job, rate=min(both[near], key=lambda rate: fmean(both[near][rate])))

    def estimate(self, jobs: Iterable[Job]) -> None:
        """Say what is left, how long it takes, and what fits now."""
        left = [job for job in dict.fromkeys(map(self.resolved, jobs)) if not self.is_done(job)]
        times = [self.seconds(job) for job in left]
        budget, fits = self.deadline - time.time(), []
        for job, needed in zip(left, times, strict=True):
            if needed <= budget:
                budget -= needed
                fits.append(job)
        self.say(f"{self.part}: {len(left)} jobs left, {sum(times) / 60:.1f} minutes; {len(fits)} fit now:")
        for job, needed in zip(left, times, strict=True):
            self.say(f"  {'now  ' if job in fits else 'later'} {needed:6.0f} s  {job}")

    # ---- jobs ----

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs that fit, in order."""
        pool, left_out, errors = Pool(1), [], []
        for asked in jobs:
            job = self.resolved(asked)
            if self.is_done(job):
                continue
            known = job.size in self.result.get("trials", {})
            if not known and time.time() + self._scaled(TRY_SECONDS) < self.deadline:
                self.try_ways(job, pool)
                known = True
            if not known or time.time() + self.seconds(job) > self.deadline:
                left_out += [str(job)] if str(job) not in left_out else []
                continue
            trial = self.result["trials"][job.size]
            rows, failed = self.train(job, pool, trial)
            if failed and trial["way"] != "eager" and LATE not in failed[0]:  # the way may be what fails
                errors.append(f"{job}, {trial['way']}: {failed[0]}")
                trial |= {"way": "eager", "lanes": 1}
                rows, failed = self.train(job, pool, trial)
            for each in failed:
                (left_out if LATE in each else errors).append(f"{job}: {each}")
            self.result["rows"] += rows
            self.keep(left_out=left_out, errors=errors)
            losses = [row["excess"] for row in rows if row["loss"] is not None]
            if losses:
                rate = median(row["tokens_per_second"] for row in rows)
                self.say(f"  {job}: excess {fmean(losses):.4f} nats/token, {rate:,.0f} tokens/s")
        pool.close()
        self.keep(left_out=left_out, errors=errors)
        for line in [*(f"left out: {each}" for each in left_out), *(f"failed: {each}" for each in errors)]:
            self.say(f"  {line}")

    def train(self, job: Job, pool: Pool, trial: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
        """(rows, what failed) of a job's models, in the way and the number of processes that were fastest."""
        lanes = trial["lanes"]
        parts = [job] if lanes == 1 else [replace(job, seeds=(seed,)) for seed in job.seeds]
        settings = (self.device, trial["way"], self.deadline, 8 if self.small else 4096)
        outcomes = pool.of(lanes).each([(train_job, part, *settings) for part in parts])
        rows = [row for outcome in outcomes if isinstance(outcome, list) for row in outcome]
        if lanes > 1:  # each row has the speed of its process
            rows = [{**row, "tokens_per_second": row["tokens_per_second"] * lanes} for row in rows]
        return rows, [first_line(outcome) for outcome in outcomes if isinstance(outcome, Exception)]

    def try_ways(self, job: Job, pool: Pool) -> None:
        """Time the ways to compute a size's steps, and keep the fastest."""
        graphs = self.device == "cuda"
        ways = ["eager", *(["graph"] if graphs else []), *(["compiled"] if graphs and self.part == "ladder" else [])]
        (found,) = pool.each([(time_ways, job, self.device, ways)])
        if isinstance(found, Exception):
            found = {"eager": {"error": first_line(found)}}
        trials = self.result.get("trials", {})
        if self.part == "horizon" and all(trial["lanes"] > 1 for trial in trials.values()):  # else one process won
            lanes = min(LANES, len(job.seeds))
            calls = [(time_ways, replace(job, seeds=(n,)), self.device, ways[-1:], 6.0) for n in range(lanes)]
            each = [answer for answer in pool.of(lanes).each(calls) if not isinstance(answer, Exception)]
            rates = [answer[ways[-1]].get("tokens_per_second") for answer in each]
            if len(rates) == lanes and None not in rates:
                found[f"{lanes} processes"] = {"tokens_per_second": sum(rates), "way": ways[-1], "lanes": lanes}
        works = {name: entry for name, entry in found.items() if "tokens_per_second" in entry}
        name = max(works, key=lambda name: works[name]["tokens_per_second"], default="eager")
        entry = works.get(name, {"tokens_per_second": self.rate(job)})
        chosen = {"way": entry.get("way", name), "lanes": entry.get("lanes", 1), "tried": found}
        self.keep(trials=trials | {job.size: {**chosen, "tokens_per_second": entry["tokens_per_second"]}})
        words = [f"{n} {e.get('error') or format(e['tokens_per_second'], ',.0f')}" for n, e in found.items()]
        self.say(f"  {job.size}, {job.opt}, tokens/s: {'; '.join(words)}: {name}")

    # ---- the parts without jobs ----

    def limits(self) -> dict[str, float]:
        """Time limits of the sections that are left, within the time that is left [s]."""
        kept = self.result.get("sections", {})
        left = {name: s for name, s in SECTIONS[self.part].items() if kept.get(name, {}).get("ended") != "done"}
        share = min(5.0 if self.small else 1.0, max(10.0, self.deadline - time.time() - 20) / (sum(left.values()) or 1))
        return {name: limit * share for name, limit in left.items()}

    def measure(self) -> None:
        """The sections that are left; before those of `check` the tests, unless they have passed."""
        if self.part == "check" and self.result.get("code") != 0:
            self.test()
        earlier = self.result.get("sections", {})

        def keep(measured: dict[str, Any]) -> None:
            self.keep(sections=earlier | measured["sections"])

        gpu_check.measure([*self.limits().items()], self.device, self.small, self.say, keep)

    def test(self) -> None:
        """The tests of `scripts/gpu_check.sh`."""
        script = Path(__file__).parents[2] / "scripts" / "gpu_check.sh"
        more = {"TESTS_ONLY": "1", "PYTHON": sys.executable, "QUICK": "1" if self.small else ""}
        child = subprocess.Popen(["bash", str(script)], env=environment(**more), text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)  # fmt: skip
        assert child.stdout is not None
        log = []
        for line in child.stdout:
            log.append(line.rstrip())
            self.say(log[-1])
        tests = [line.strip("= ") for line in log if re.search(r"\d+ (passed|failed|error)", line)]
        self.keep(tests=tests, code=child.wait(), log=log[-200:])


def _kind(device: str, small: bool, **_: Any) -> str:
    return f"{device}{', a dry run' * small}"


class Pool:
    """Processes that stay; new ones where one of them failed, since a CUDA error ends a process's use of the device."""

    def __init__(self, lanes: int):
        self.lanes, self._executor = lanes, None

    def of(self, lanes: int) -> Pool:
        """With so many processes."""
        if lanes != self.lanes:
            self.close()
            self.lanes = lanes
        return self

    def each(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Results of (function, *arguments), or their exceptions."""
        if self._executor is None:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self.lanes, mp_context=context)
        futures = [self._executor.submit(*call) for call in calls]
        outcomes = [future.exception() or future.result() for future in futures]
        if any(isinstance(each, Exception) and not isinstance(each, OutOfTimeError) for each in outcomes):
            self.close()
        return outcomes

    def close(self) -> None:
        """End the processes."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        self._executor = None


JOBS = {"ladder": ladder_jobs, "horizon": horizon_jobs}
PARTS = ("check", *JOBS, "long")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a part."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_day.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(os.environ.get("OUT", "gpu-day")),
                        help="where the results are; default $OUT or gpu-day")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=8.5, help="time of the command; default 8.5")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="a dry run at a hundredth of the size, for a CPU")
    parser.add_argument("--estimate", action="store_true", help="say what would be run, and how long it takes")
    flags = parser.parse_args(arguments)
    try:
        day = Day(flags.part, flags.folder, flags.device, flags.small, flags.minutes)
    except UserError as error:
        print(f"gpu-day: {error}", file=sys.stderr)
        return 2
    jobs = JOBS[flags.part](flags.small) if flags.part in JOBS else []
    if jobs:
        day.estimate(jobs)
    else:
        each = ", ".join(f"{name} {limit:.0f} s" for name, limit in day.limits().items())
        print(f"{flags.part}: at most {flags.minutes:.1f} minutes; left: {each or 'nothing'}")
    if flags.estimate:
        return 0
    import torch

    from danalab.train.system.device import machine

    if flags.device == "cuda" and not torch.cuda.is_available():
        print("gpu-day: torch sees no CUDA device; --device cpu --small is a dry run", file=sys.stderr)
        return 2
    day.keep(machine=machine(flags.device))
    if jobs:
        day.run(jobs)
    else:
        day.measure()
    day.keep()
    print(f"{flags.part}: {time.time() - day.began:.0f} s; results in {day.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
