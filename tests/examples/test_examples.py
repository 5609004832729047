"""Every example runs as it is, and its loss falls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **OFFLINE}, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"\bloss'?:? +'?([0-9.e+-]+)", printed)]


@pytest.mark.slow
def test_the_plain_loop_trains_and_resumes_bit_for_bit():
    printed = run(sys.executable, str(EXAMPLES / "plain_pytorch.py"))
    found = losses(printed)
    assert found[-1] < 2.5 < found[0]
    assert "equal bit for bit: True" in printed


@pytest.mark.slow
def test_the_lightning_module_trains():
    found = losses(run(sys.executable, str(EXAMPLES / "lightning_module.py")))
    assert len(found) == 6
    assert found[-1] < 3 < found[0]


@pytest.mark.slow
def test_the_hugging_face_trainer_trains_and_resumes():
    found = losses(run(sys.executable, str(EXAMPLES / "huggingface_trainer.py")))
    assert len(found) == 6 + 2
    assert found[5] < 3 < found[0]
    assert found[6:] == found[4:6]


@pytest.mark.slow
def test_trls_trainer_trains_and_resumes():
    pytest.importorskip("trl")
    found = losses(run(sys.executable, str(EXAMPLES / "trl_sft.py")))
    assert len(found) == 6 + 2
    assert found[5] < 2 < found[0]
    assert found[6:] == found[4:6]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nanochat_groups", "modded_nanogpt_loop", "olmo_core_optimizer", "litgpt_optimizer"])
def test_the_loops_of_others_train(name):
    package = name.removesuffix("_optimizer")
    if name.endswith("_optimizer"):
        pytest.importorskip(package)
    found = losses(run(sys.executable, str(EXAMPLES / f"{name}.py")))
    assert found[-1] < 0.1


@pytest.mark.slow
def test_torchtitans_container_trains_and_resumes_bit_for_bit():
    pytest.importorskip("torchtitan")
    printed = run(sys.executable, str(EXAMPLES / "torchtitan_optimizer.py"))
    assert len(losses(printed)) == 4
    assert "t 60" in printed
    assert "equal bit for bit: True" in printed


@pytest.mark.slow
def test_fsdp2_shards_and_trains_on_two_ranks():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    printed = run(*torchrun, str(EXAMPLES / "fsdp2.py"))
    found = losses(printed)
    assert found[-1] < 3 < found[0]
    assert "state of 5 parameters; clock at t = 100" in printed


@pytest.mark.slow
def test_proposals_are_judged_and_the_loop_says_what_came_of_them(tmp_path):
    printed = run(sys.executable, str(EXAMPLES / "propose_and_judge.py"), "--quick", "--ledger", str(tmp_path))
    lines = printed.splitlines()
    assert len(lines) >= 4  # one per proposal, and the end
    assert "None of 3 proposals is better than ADana." in lines[-1] or lines[-1].startswith("adana:")


def test_every_example_has_a_test():
    tested = {"plain_pytorch", "lightning_module", "huggingface_trainer", "fsdp2", "optax_loop", "propose_and_judge"}
    tested |= {"trl_sft", "torchtitan_optimizer"}
    tested |= {"huggingface_factory", "olmo_core_optimizer", "litgpt_optimizer"}  # test_trainers.py, test_frameworks.py
    tested |= {"nanochat_groups", "modded_nanogpt_loop"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
