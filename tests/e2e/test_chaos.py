"""Kills and damage in any order, at random moments: the run ends as the undisturbed one, to the last bit."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import pytest

from danalab.train.checkpoint.store import COMMIT, why_unusable
from danalab.train.run.folder import RunFolder
from e2e.disturbed import assert_same, config, train_in_child

SMALL_FILES = 100_000
"""Bytes: metrics fit in, the tensors of a checkpoint do not."""


def truncate(newest: Path, draw: random.Random) -> None:
    file = next(newest.glob("*.distcp"))
    os.truncate(file, draw.randrange(file.stat().st_size))


def flip(newest: Path, draw: random.Random) -> None:
    file = draw.choice(sorted(path for path in newest.iterdir() if path.is_file()))
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def uncommit(newest: Path, draw: random.Random) -> None:
    (newest / COMMIT).unlink()


def no_room() -> None:
    """From now on no file of this process can grow beyond a limit, by the system's own rule."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILES, SMALL_FILES))


def disturb(
    data: Path, run_dir: Path, seconds: float, draw: random.Random, faults: int
) -> tuple[int, set[str]]:
    """Run to the end against `faults` faults; returns how many kills there were, and what was damaged."""
    settings, store = config(data, run_dir), RunFolder(run_dir).store
    kills, damaged = 0, set()
    for n in range(faults):
        full = draw.random() < 0.2
        # Later kills come later, so that the run gets on however slow this machine is today.
        kill_after = draw.uniform(0.05, 0.2 * seconds + 0.1) * (1 + n / 5)
        if train_in_child(settings, kill_after, no_room if full else lambda: None, may_fail=full):
            return kills, damaged
        kills += 1
        damaged |= {"full"} if full else set()
        usable = [step for step in store.steps() if why_unusable(store.path(step)) is None]
        if (
            len(usable) >= 2
        ):  # the only one that is left is not touched: without any, a run rightly refuses to go on
            fault = draw.choice([truncate, flip, uncommit, None])
            if fault is not None:
                fault(store.path(usable[-1]), draw)
                damaged.add(fault.__name__)
    assert train_in_child(settings)
    return kills, damaged


@pytest.mark.slow
def test_a_run_comes_through_kills_and_damage_as_if_nothing_had_been(data, tmp_path, undisturbed):
    seconds = undisturbed.read_summary()["time"]
    draw = random.Random(os.environ.get("DANALAB_TEST_SEED", "3"))
    kills, _ = disturb(data, tmp_path / "run", seconds, draw, faults=4)
    assert kills > 0
    assert_same(RunFolder(tmp_path / "run"), undisturbed)


@pytest.mark.slow
def test_forty_kills_and_every_kind_of_damage_cost_no_bit(data, tmp_path, undisturbed):
    seconds = undisturbed.read_summary()["time"]
    draw = random.Random(os.environ.get("DANALAB_TEST_SEED", "5"))
    kills, damaged, runs = 0, set(), 0
    while kills < 40 or len(damaged) < 4:
        runs += 1
        more, kinds = disturb(data, tmp_path / f"run{runs}", seconds, draw, faults=12)
        assert_same(RunFolder(tmp_path / f"run{runs}"), undisturbed)
        kills, damaged = kills + more, damaged | kinds
    print(f"{kills} kills in {runs} runs; damage: {', '.join(sorted(damaged))}")
