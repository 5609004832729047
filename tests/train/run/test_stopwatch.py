"""Training time without the time of evaluations, by a clock that the tests turn."""

from __future__ import annotations

import pytest

from danalab.train.run import logbook
from danalab.train.run.logbook import Stopwatch


class Clock:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logbook, "time", clock)
    return clock


def test_what_is_left_out_counts_neither_in_all_nor_in_the_interval(clock):
    watch = Stopwatch()
    clock.now += 2
    with watch.leaving_out():
        clock.now += 50
    clock.now += 3
    assert watch.take_interval() == {"seconds": 5}
    assert watch.seconds == 5


def test_intervals_begin_anew_and_the_whole_goes_on_from_earlier_jobs(clock):
    watch = Stopwatch()
    watch.seconds = 1000.0
    clock.now += 7
    watch.start()
    clock.now += 2
    watch.interval["steps"] += 4
    assert watch.take_interval() == {"steps": 4, "seconds": 2}
    clock.now += 1
    watch.tick()
    clock.now += 1
    assert watch.take_interval() == {"seconds": 2}
    assert watch.seconds == 1004
