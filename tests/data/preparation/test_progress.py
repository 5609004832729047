"""How far a preparation is: a bar on a terminal, else a line a minute."""

from __future__ import annotations

from danalab.data.preparation.pipeline import progress_bar


def test_without_a_terminal_a_line_is_written_every_minute(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 30.0, 61.0, 100.0, 130.0])
    monkeypatch.setattr("danalab.data.preparation.pipeline.time.perf_counter", lambda: next(clock))
    with progress_bar("tokenising files", shown=True) as show:
        for done in (0, 100, 200, 300, 400):
            show(done / 1000, 10 * done)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tokenising files: 2,000 tokens, 33 tokens/s, 20.0%, about 4 min left"
    assert len(lines) == 2


def test_forced_colours_without_a_terminal_bring_no_bars(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in the kernel of a notebook
    with progress_bar("tokenising files", shown=True) as show:
        show(0.4, 4000)
    assert not capsys.readouterr().err
