"""Something that looks on while a run is trained: mirrors of its metrics, monitors, statistics, profiles.

A callback changes nothing of the run. It is told, in this order, of each update that is about to be made and was made,
of each row of metrics, and of the end; what it wants to remember across restarts is part of checkpoints.
"""

from __future__ import annotations

from typing import Any


class Callback:
    """Base of callbacks: hears everything, does nothing.

    `on_row` and `on_end` are called on the first rank alone; the others on every rank, where they may use collectives.
    """

    name = "callback"
    """Under which its state stands in checkpoints."""

    def on_start(self, step: int) -> None:
        """Training begins, or goes on, from the state after `step` steps."""

    def before_update(self, step: int, logged: bool) -> None:
        """The gradients of update number `step` are there (clipped, finite); the weights are still the old ones."""

    def after_update(self, step: int, logged: bool) -> None:
        """Update number `step` was made."""

    def on_evaluated(self, step: int) -> None:
        """The fixed validation set was evaluated after `step` steps."""

    def on_row(self, row: dict[str, Any]) -> None:
        """A row of metrics was written."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """The run ended or was stopped; entries may be added to the summary."""

    def sync(self) -> None:
        """Make durable what was written so far; a checkpoint is committed after it. Called beside training.

        Raises:
            OSError: it cannot be written.
        """

    def close(self) -> None:
        """Let go of files and connections, whatever happened."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values to be checkpointed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
