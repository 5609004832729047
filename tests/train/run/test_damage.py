"""One damaged file of a run folder is noticed and reported, and does not cost a run whose checkpoints are sound."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.errors import UserError
from danalab.train import train
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.run.open import open_run


def weights(folder):
    return torch.cat([p.detach().flatten() for p in open_run(folder).load_model().model.parameters()])


@pytest.fixture
def half(tiny, tmp_path):
    """(folder of a run that has made 10 of 20 steps, its weights in the end when nothing is damaged)."""
    whole = train(tiny(run_dir=tmp_path / "whole"))
    return train(tiny(iterations_to_run=10)), weights(whole)


def delete(file):
    file.unlink()


def zero(file):
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(content[: middle - 200] + bytes(400) + content[middle + 200 :])


def cut(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-2]))


def hollow(file):
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2] + lines[4:]))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "damage", [delete, *(pytest.param(f, marks=pytest.mark.slow) for f in (cut, hollow, zero))]
)
def test_a_hole_in_the_metrics_is_noticed_and_said_at_resume(tiny, half, caplog, damage):
    folder, expected = half
    damage(folder / "metrics.jsonl")
    train(tiny(iterations_to_run=5))
    assert "rows are missing or damaged" in caplog.text
    caplog.clear()
    train(tiny())
    assert "missing or damaged" not in caplog.text  # said once
    assert torch.equal(weights(folder), expected)
    assert [row["step"] for row in read_rows(folder / "metrics.jsonl")][-5:] == [12, 14, 16, 18, 20]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "content",
    [
        '{"status": "finished", "step": "x"}',
        *(pytest.param(c, marks=pytest.mark.slow) for c in ("{", "[]", "null", '{"status": 3}', "\0")),
    ],
)
def test_a_damaged_summary_does_not_stop_a_run(tiny, half, caplog, content):
    folder, expected = half
    (folder / "summary.json").write_text(content)
    train(tiny())
    assert "summary.json: " in caplog.text
    assert torch.equal(weights(folder), expected)


@pytest.mark.slow
def test_a_damaged_summary_is_one_line_to_those_who_read_it(half):
    folder, _ = half
    (folder / "summary.json").write_text('{"status": "finished", "step": 10, "val/loss": "low"}')
    with pytest.raises(UserError, match=r"summary\.json: malformed: val/loss: "):
        _ = open_run(folder).summary


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_written_again(tiny, half, name):
    folder, _ = half
    file = folder / "tokenizer" / name
    sound = file.read_bytes()
    file.write_bytes(sound[: len(sound) // 2])
    train(tiny())
    assert file.read_bytes() == sound


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "content",
    [
        {"step": "x"},
        [],
        *(pytest.param(c, marks=pytest.mark.slow) for c in ({}, {"step": 10, "callbacks": 3}, {"step": 10})),
    ],
)
def test_a_meta_file_that_is_no_state_of_a_run_is_one_line(tiny, half, content):
    from danalab.train.checkpoint.store import commit

    folder, _ = half
    for step in RunFolder(folder).store.steps():
        checkpoint = RunFolder(folder).store.path(step)
        (checkpoint / "meta.json").write_text(json.dumps(content))
        (checkpoint / "COMMIT").unlink()
        (checkpoint / "manifest.json").unlink()
        commit(checkpoint)
    with pytest.raises(UserError, match=r"meta\.json: (malformed|not the state of a run)"):
        train(tiny())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step": "1"}', "step: "),
        ("[]", "row: "),
        ('{"step": 1, "val/loss": "low"}', "val/loss: "),
        (f'{{"step": 1, "tokens": {10**500}}}', "tokens: "),
        (f'{{"step": 1, "flops": {10**500}}}', "flops: "),
        ("nonsense", "Expect"),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_its_line(tmp_path, line, reason):
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n' + line + '\n{"step": 3}\n')
    with pytest.raises(UserError, match=rf"m\.jsonl:2: not a row of metrics: {reason}"):
        read_rows(tmp_path / "m.jsonl")
