"""Spikes are told of, and not cried too often; the window survives a restart."""

from __future__ import annotations

from danalab.train.callbacks.console import SpikeMonitor


def feed(monitor: SpikeMonitor, *losses: float) -> int:
    for loss in losses:
        monitor.on_row({"step": 1, "train/loss": loss, "update_norm": 1.0})
    return monitor.spikes


CALM = [3.0 + 0.02 * (i % 5) for i in range(30)]


def test_a_calm_run_has_no_spikes(watching):
    assert feed(SpikeMonitor(watching()), *CALM) == 0


def test_a_spike_is_told_of(caplog, watching):
    assert feed(SpikeMonitor(watching()), *CALM, 5.0, *CALM) == 1
    assert "train/loss spikes to 5" in caplog.text


def test_what_is_not_finite_stays_out_of_the_window(watching):
    assert feed(SpikeMonitor(watching()), *CALM, float("nan"), 5.0) == 1


def test_the_window_survives_a_restart(watching):
    first, second = SpikeMonitor(watching()), SpikeMonitor(watching())
    feed(first, *CALM)
    second.load_state_dict(first.state_dict())
    assert feed(second, 5.0) == 1
