"""`danalab bench optim`: what it counts and whom it refuses; never how long anything took."""

from __future__ import annotations

import json

import pytest
import torch

from danalab.cli.app import main
from danalab.errors import UserError
from danalab_bench.contenders import contender
from danalab_bench.optim import ELEMENTWISE, MATRICES, default_contenders, line, measure, transformer
from danalab_bench.timing import interleaved, ratios


@pytest.fixture(scope="module")
def found():
    return measure("cpu", ["0.2"], 2, ["adamw:fused", "adana:fused", "dana-star", "muon"])


@pytest.mark.slow
def test_bandwidth_counts_seven_words_for_adam_and_nine_with_tau(found):
    rows = found["sizes"]["0.2M"]["results"]
    numel = found["sizes"]["0.2M"]["parameters"]
    for name, words in (("adamw:fused", 7), ("adana:fused", 7), ("dana-star", 9)):
        moved = rows[name]["gb_per_s"] * rows[name]["ms"]["median"] * 1e6
        assert moved == pytest.approx(4 * words * numel, rel=1e-3)


def test_every_contender_has_a_ratio_to_fused_adamw_with_quartiles(found):
    for name, row in found["sizes"]["0.2M"]["results"].items():
        assert row["ratio"]["q1"] <= row["ratio"]["median"] <= row["ratio"]["q3"]
        assert name in line(name, row)


def test_muon_is_measured_against_torchs_muon(found):
    row = found["sizes"]["0.2M"]["results"]["muon"]
    assert row["peer"] == "torch.Muon"
    assert row["ratio_to_peer"]["median"] > 0


def test_foreach_is_measured_against_torchs_foreach():
    assert contender("dana-star:foreach", "cpu").peer == "adamw:foreach"
    assert contender("adamw:foreach", "cpu").peer is None
    assert contender("ademamix:fused", "cpu").peer == "po.AdEMAMix"


def test_the_command_prints_one_json_object_and_writes_it(tmp_path, capsys):
    file = tmp_path / "new" / "result.json"
    arguments = ["bench", "optim", "--sizes", "0.2", "--rounds", "1", "--threads", "1", "--opts", "adamw:fused"]
    assert main([*arguments, "--json", "--output", str(file)]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out == json.loads(file.read_text())
    assert out["machine"]["threads"] == 1
    assert list(out["sizes"]["0.2M"]["results"]) == ["adamw:fused"]


def test_a_thread_of_a_shared_machine_is_timed_by_its_processor(tmp_path, monkeypatch, capsys):
    ticks = iter(range(1000))
    monkeypatch.setattr("danalab_bench.timing.time.thread_time", lambda: float(next(ticks)))
    monkeypatch.setattr("os.getloadavg", lambda: (2.0, 0.0, 0.0))
    file = tmp_path / "result.json"
    arguments = ["bench", "optim", "--sizes", "0.02", "--rounds", "2", "--opts", "adana:fused", "--output", str(file)]
    assert main([*arguments, "--threads", "1", "--clock", "processor"]) == 0
    found = json.loads(file.read_text())
    assert found["clock"] == "processor time of one thread"
    assert found["shared"] == "the machine was shared: load average 2.0"
    assert found["sizes"]["0.02M"]["results"]["adana:fused"]["ms"]["median"] == 1000.0  # a tick
    assert main([*arguments, "--threads", "2", "--clock", "processor"]) == 2
    assert "--clock processor: it counts one thread on a CPU; add --threads 1" in capsys.readouterr().err
    monkeypatch.setattr("os.getloadavg", lambda: (1.5, 0.0, 0.0))
    assert main([*arguments, "--threads", "1"]) == 0
    assert not {"clock", "shared"} & set(json.loads(file.read_text()))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--opts", "adanna"], "did you mean 'adana'"),
        (["--opts", "adana:quick"], "unknown backend 'quick'"),
        (["--opts", "adana:graph"], "CUDA graphs need --device cuda"),
        (["--opts", "muon:graph"], "CUDA graphs need --device cuda"),
        (["--opts", "torch.Adamm"], "did you mean 'Adam'"),
        (["--sizes", "3"], "--sizes 3: known are 0.02, 0.2, 1, 1.1, 20, 88, 124, 350, 600 (million"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
    ],
)
def test_bad_input_is_one_line(arguments, complaint, capsys):
    assert main(["bench", "optim", "--sizes", "1", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="torch sees no CUDA device"):
        measure("cuda", [1], 1)


@pytest.mark.parametrize("name", ELEMENTWISE + MATRICES)
def test_every_default_contender_takes_a_step(name):
    params = transformer(64, 8, 1)
    before = [p.detach().clone() for p in params]
    contender(name, "cpu").prepare(params)[1]()
    assert any(not torch.equal(p, old) for p, old in zip(params, before, strict=True))


def test_graphs_are_measured_on_gpus_only():
    assert not any(name.endswith(":graph") for name in default_contenders("cpu", 20))
    assert "adana:graph" in default_contenders("cuda", 20)


def test_each_round_runs_every_contender_once_and_starts_with_another():
    calls: list[str] = []
    work = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    times = interleaved(work, 3, lambda job: (job(), 1.0)[1])
    rounds = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert rounds == ["abc", "bca", "cab"] * 2
    assert times == {name: [1.0] * 3 for name in "abc"}


def test_a_ratio_is_taken_round_by_round():
    assert ratios([2.0, 8.0, 3.0], [1.0, 4.0, 3.0])["median"] == 2.0


@pytest.mark.gpu
def test_steps_are_captured_as_cuda_graphs():
    found = measure("cuda", [1], 2, ["adamw:graph", "adana:graph", "dana-star-mk4:graph"])
    assert len(found["sizes"]["0.2M"]["results"]) == 3


@pytest.mark.slow
def test_small_sizes_are_measured_with_default_settings():
    found = measure("cpu", ["0.2", "500x2k"], 1, ["adana"])["sizes"]
    assert [found[size]["tensors"] for size in ("0.2M", "500x2k")] == [26, 500]
    assert "adana" in default_contenders("cpu", "500x2k")
    assert not any(":" in name for name in default_contenders("cpu", "1.1")[1:])
