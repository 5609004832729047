"""How far a preparation is: by tokens where they are limited, by text of known size, else by finished files."""

from __future__ import annotations

import pytest

from danalab.data.preparation.pipeline import progress_bar, work_estimate
from danalab.data.sources import TRAIN, VAL, Source, SourcePosition


class _Files(Source):
    name, licence, summary = "files", "none", "two files to train on and one to validate"

    def __init__(self, size: int | None):
        self.size = size

    def iter_documents(self):
        return iter(())

    def part_bytes(self, side: str) -> list[int]:
        return [100, 300] if side == TRAIN else [50]

    def size_bytes(self) -> int | None:
        return self.size

    def identity(self) -> str:
        return ""


def test_a_limit_of_tokens_is_the_whole():
    assert work_estimate(_Files(None), 1000)(SourcePosition(TRAIN, 0, 3), 250, 9) == (250, 1000)


def test_a_known_size_of_text_is_the_whole():
    assert work_estimate(_Files(800), None)(SourcePosition(TRAIN, 0, 3), 250, 200) == (200, 800)


@pytest.mark.parametrize(
    ("place", "text", "total"),
    [
        (SourcePosition(TRAIN, 0, 9), 120, None),
        (SourcePosition(TRAIN, 1, 0), 250, 1125),
        (SourcePosition(VAL, 0, 1), 1000, 1125),
    ],
)
def test_finished_files_tell_how_much_text_a_stored_byte_gives(place, text, total):
    assert work_estimate(_Files(None), None)(place, 0, text) == (text, total)


def test_without_a_terminal_a_line_is_written_every_minute(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 30.0, 61.0, 100.0, 130.0])
    monkeypatch.setattr("danalab.data.preparation.pipeline.time.perf_counter", lambda: next(clock))
    with progress_bar("tokenising files", shown=True) as show:
        for done in (0, 100, 200, 300, 400):
            show(done, 1000, 10 * done)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tokenising files: 2,000 tokens, 33 tokens/s, 20.0%, about 4 min left"
    assert len(lines) == 2


def test_forced_colours_without_a_terminal_bring_no_bars(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in the kernel of a notebook
    with progress_bar("tokenising files", shown=True) as show:
        show(400, 1000, 4000)
    assert not capsys.readouterr().err
