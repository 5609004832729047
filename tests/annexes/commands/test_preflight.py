"""`danalab check`: a sound run is ready, and each fault has its verdict."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from danalab.cli.app import main
from danalab.data import open_data
from danalab.errors import UserError
from danalab.train.config.resolve import resolve
from danalab_annexes.commands import preflight as first_steps
from danalab_annexes.commands.preflight import (
    Trial,
    check_data,
    check_overfit,
    check_run,
    differing_tensors,
    make_trial,
)

SHORT = ["--d-model", "32", "--n-layers", "1", "--n-heads", "1", "--seq-len", "16", "--batch-size", "4", "--lr", "1e-2"]
SHORT += ["--iterations", "9", "--check-steps", "2", "--overfit-steps", "40"]


def spec_of(config):
    return resolve(config, open_data(config.data))


def rows_of(*losses: float, **more: float) -> SimpleNamespace:
    """A trial with these rows."""
    rows = [{"train/loss": loss, "tokens_per_second": 100.0, "memory_gib": 0.1, **more} for loss in losses]
    return SimpleNamespace(rows=rows, steps=len(losses))


def test_a_sound_run_is_ready_and_nothing_is_left(data, tmp_path, capsys):
    assert main(["check", "--data", str(data), "--run-dir", str(tmp_path / "runs" / "a"), *SHORT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ready"]
    assert {each["name"]: each["status"] for each in found["checks"]} == dict.fromkeys(
        ("data", "loss", "memory", "resume", "time", "overfit"), "ok"
    )
    assert list(tmp_path.iterdir()) == []


def test_bad_input_ends_with_code_2(data, tmp_path, capsys, monkeypatch):
    arguments = ["check", "--data", str(data), "--run-dir", str(tmp_path / "run"), *SHORT]
    assert main([*arguments, "--check-steps", "9"]) == 2
    assert "--check-steps 9: the run has 9 steps" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(arguments) == 2
    assert "--nproc N starts the ranks" in capsys.readouterr().err


def test_damaged_data_fail(data, tmp_path, tiny):
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    shard = sorted(copy.glob("train*.bin"))[0]
    content = bytearray(shard.read_bytes())
    content[-2] ^= 1
    shard.write_bytes(content)
    config = tiny(data=str(copy))
    verdict = check_data(spec_of(config), open_data(config.data))
    assert verdict.status == "failed"
    assert shard.name in verdict.text


def test_many_passes_over_the_data_are_a_warning(tiny):
    config = tiny(iterations=100_000)
    dataset = open_data(config.data)
    verdict = check_data(spec_of(config), dataset)
    assert (verdict.status, f"{100_000 * 64 / dataset.n_tokens:.2g} times" in verdict.text) == ("warning", True)
    assert check_data(spec_of(tiny()), dataset).status == "ok"


@pytest.mark.parametrize(
    ("distance", "status"), [(0.0, "ok"), (0.9, "ok"), (-0.1, "ok"), (1.1, "failed"), (-0.3, "failed")]
)
def test_the_first_loss_is_near_that_of_a_uniform_guess(tiny, distance, status):
    spec = spec_of(tiny())
    assert first_steps.check_first_loss(spec, rows_of(math.log(spec.model.vocab_size) + distance)).status == status


def test_weights_of_another_run_may_start_lower(tiny, tmp_path):
    config = tiny()
    spec = replace(spec_of(config), given=replace(config, resume_from=tmp_path))
    assert first_steps.check_first_loss(spec, rows_of(1.0)).status == "ok"


def test_memory_that_is_nearly_full_is_a_warning(tiny):
    spec = spec_of(tiny())
    assert first_steps.check_memory(spec, rows_of(1.0)).status == "ok"
    assert first_steps.check_memory(spec, rows_of(1.0, memory_gib=1e6)).status == "warning"


def test_the_memory_is_that_of_the_gpu_that_the_run_uses(tiny, monkeypatch):
    gpus = [SimpleNamespace(total_memory=size << 30) for size in (8, 80)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: gpus[number])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    spec = SimpleNamespace(execution=SimpleNamespace(device_type="cuda"), budget=SimpleNamespace(batch_size=4))
    verdict = first_steps.check_memory(spec, rows_of(1.0, memory_gib=40.0))
    assert (verdict.status, "40.0 of 80 GiB of the GPU" in verdict.text) == ("ok", True)


def test_hours_follow_from_the_tokens_of_the_run_and_the_later_steps(tiny):
    trial = rows_of(1.0, 1.0, 1.0)
    trial.rows[0]["tokens_per_second"] = 1.0
    text = first_steps.check_time(spec_of(tiny(iterations=9000)), trial).text
    assert text.startswith("100 tokens/s; 9,000 steps take 1.6 hours")  # 9000 x 4 x 16 / 100 s


def test_a_bit_of_difference_is_found():
    ours = {"a": torch.zeros(2), "b": torch.ones(1)}
    assert differing_tensors(ours, {name: value.clone() for name, value in ours.items()}) == []
    assert differing_tensors(ours, {"a": torch.tensor([0.0, 1e-45])}) == ["a", "b"]


@pytest.mark.slow
def test_another_seed_is_not_the_same_run(tiny, tmp_path):
    ours, theirs = tiny(), tiny(seed=2)
    trials = [make_trial(spec_of(each), each, tmp_path / str(each.seed), 4) for each in (ours, theirs)]
    assert first_steps.check_resume(spec_of(ours), trials[0]).status == "ok"
    mixed = Trial(trials[0].whole, trials[1].resumed, 4)
    assert first_steps.check_resume(spec_of(ours), mixed).status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(("lr", "status"), [(3e-3, "ok"), (1e-9, "failed"), (1e4, "failed")])
def test_a_rate_that_learns_nothing_or_diverges_fails(tiny, tmp_path, lr, status):
    config = tiny(lr=lr)
    verdict = check_overfit(spec_of(config), config, open_data(config.data), tmp_path / "one", 100)
    assert verdict.status == status, verdict.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"nproc": 2, "distributed_backend": "zero"}, {"nproc": 2, "distributed_backend": "fsdp"}, {"arch": "resonance"},
     {"n_experts": 4, "top_k": 2, "opt": "dana-star-mk4"}, {"packing": "documents", "document_mask": True}],
    ids=str,
)  # fmt: skip
def test_other_kinds_of_runs_are_checked(tiny, settings):
    verdicts = list(check_run(tiny(lr=1e-2, **settings), steps=4, overfit_steps=100))
    assert [verdict for verdict in verdicts if verdict.status != "ok"] == []


@pytest.mark.slow
def test_a_run_that_cannot_train_fails_with_the_reason(tiny, monkeypatch):
    def refuse(config):
        raise UserError("out of memory: lower --batch-size")

    monkeypatch.setattr(first_steps, "run_training", refuse)
    found = {verdict.name: verdict for verdict in check_run(tiny(), steps=4, overfit_steps=4)}
    assert found["training"].status == "failed"
    assert found["training"].text == "out of memory: lower --batch-size"


def test_a_stop_ends_the_check(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(first_steps, "run_training", lambda config: SimpleNamespace(status="interrupted"))
    with pytest.raises(KeyboardInterrupt):
        make_trial(spec_of(tiny()), tiny(), Path(tmp_path), 4)
