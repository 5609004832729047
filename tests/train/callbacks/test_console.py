"""What is printed of a run's pace."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pty
import re
import sys

from danalab.train.callbacks.console import ConsoleProgress, StderrHandler, log_to_stderr, terminal

ROW = {
    "step": 2,
    "train/loss": 3.0,
    "lr": 1e-3,
    "tokens_per_second": 1024.0,
    "mfu": 0.5,
    "seconds_per_step": 1.0,
}


def test_forced_colours_without_a_terminal_bring_no_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in the kernel of a notebook
    progress = ConsoleProgress(10, 0)
    progress.on_row(ROW)
    written = capsys.readouterr().err
    assert "step" in written
    assert "\x1b[?25l" not in written, "the cursor is not hidden, as for a bar"


def test_messages_go_to_the_standard_error_of_the_moment(capsys, monkeypatch):
    record = logging.LogRecord("danalab", logging.INFO, "", 0, "said", None, None)
    handler = StderrHandler()
    with monkeypatch.context() as patch, io.StringIO() as closed_later:
        patch.setattr(sys, "stderr", closed_later)
        handler.emit(record)
        assert closed_later.getvalue() == "said\n"
    handler.emit(record)
    assert capsys.readouterr().err == "said\n"


def test_a_message_on_a_terminal_stands_on_a_line_of_its_own(monkeypatch):
    mother, child = pty.openpty()
    logger = logging.getLogger("danalab")
    with os.fdopen(child, "w") as stream:
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(logger, "handlers", [])
        monkeypatch.setattr(logger, "level", logging.INFO)
        terminal.cache_clear()
        try:
            log_to_stderr()
            progress = ConsoleProgress(10, 0)
            progress.on_row({"step": 2, "train/loss": 3.0, "lr": 1e-3, "tokens_per_second": 1024.0})
            logger.info("checkpoint of step 2")
            progress.close()
        finally:
            terminal.cache_clear()
    written = ""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(mother, 65536):
            written += piece.decode()
    os.close(mother)
    assert "step 0/10" in written
    before = written.partition("checkpoint of step")[0].rpartition("\x1b[2K")[2]  # since the bar was erased
    assert re.sub(r"\x1b\[[0-9;]*m", "", before).strip() == "INFO"
