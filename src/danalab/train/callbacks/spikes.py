"""Warnings of spikes in the loss and the update norm."""

import logging
import math
import statistics
from collections import deque
from typing import Any

from danalab.train.callbacks.base import Callback

log = logging.getLogger(__name__)


class SpikeMonitor(Callback):
    """Warns when a logged loss or update norm exceeds the recent median by `threshold` robust deviations.

    Update norms spike before losses do. The deviation is the median absolute deviation, which a spike in the window
    does not widen; values that are not finite are ignored.
    """

    name = "spikes"
    KEYS = ("train/loss", "update_norm")

    def __init__(self, window: int = 50, threshold: float = 8.0, least: int = 20):
        """Args: window: rows kept; least: rows before the first warning."""
        self.spikes = 0
        self._threshold, self._least = threshold, least
        self._history: dict[str, deque[float]] = {key: deque(maxlen=window) for key in self.KEYS}

    def on_row(self, row: dict[str, Any]) -> None:
        for key, history in self._history.items():
            value = row.get(key)
            if value is None or not math.isfinite(value):
                continue
            if len(history) >= self._least:
                middle = statistics.median(history)
                spread = 1.4826 * statistics.median(abs(x - middle) for x in history)
                # The floor avoids false alarms in a window of nearly equal values.
                if value > middle + self._threshold * max(spread, 0.01 * abs(middle)):
                    self.spikes += 1
                    log.warning("step %d: %s spikes to %.4g (recent median %.4g)", row["step"], key, value, middle)
            history.append(value)

    def on_end(self, summary: dict[str, Any]) -> None:
        """Add the number of spikes to the summary."""
        summary["spikes"] = self.spikes

    def state_dict(self) -> dict[str, Any]:
        return {"spikes": self.spikes, "history": {key: list(values) for key, values in self._history.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.spikes = state["spikes"]
        for key, values in state["history"].items():
            self._history[key].clear()
            self._history[key].extend(values)
