"""Results say on what they were measured, and have a name of their own for each instruction set."""

import platform

import pytest

from danalab.train.system import device
from danalab_bench import train_cpu
from danalab_bench.verbs import ResultFlags


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ({"isa": "x86-64-v4", "target": "native"}, "optim_cpu.json"),
        ({"isa": "x86-64-v3", "target": "native"}, "optim_cpu_v3.json"),
        ({"isa": "x86-64-v4", "target": "x86-64-v2"}, "optim_cpu_v2.json"),
        ({"isa": "aarch64", "target": "native"}, "optim_cpu_aarch64.json"),
        ({"isa": "x86-64-v3", "target": "native", "gpu": "H100"}, "optim_cuda.json"),
    ],
)
def test_a_folder_holds_a_file_for_each_device_and_instruction_set(tmp_path, machine, name):
    found = {"benchmark": "optim", "machine": machine}
    assert ResultFlags(output=tmp_path).file(found) == tmp_path / name
    assert ResultFlags(output=tmp_path / "x.json").file(found) == tmp_path / "x.json"


def test_the_machine_is_its_cpu_instructions_cores_and_target():
    found = device.machine("cpu")
    assert found["cpu"]
    assert found["isa"].startswith("x86-64") or found["isa"] == platform.machine()
    assert found["target"] == "native"
    assert found["cores"] >= 1
    assert found["torch_capability"]


def test_processors_of_one_name_are_told_apart(monkeypatch):
    facts = "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2"
    monkeypatch.setattr(device, "processor", lambda: facts)
    assert device.machine("cpu")["cpu"] == "AMD EPYC, family 25, model 17"
    monkeypatch.setattr(device, "processor", lambda: "")
    assert device.machine("cpu")["cpu"]


def test_bfloat16_is_left_out_on_cpus_that_do_not_multiply_it(monkeypatch):
    sides, said = [], []
    monkeypatch.setattr(train_cpu, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(train_cpu, "_measure_cell", lambda cell, rounds, chosen: sides.extend(chosen) or {"sides": {}})
    monkeypatch.setattr(train_cpu, "lines", lambda row: [])
    train_cpu.measure(train_cpu.cells((2,), (1,))[:1], 1, said.append)
    assert sides == ["trainer float32", "loop float32"]
    assert said == ["bfloat16 is left out: this CPU does not multiply it"]
