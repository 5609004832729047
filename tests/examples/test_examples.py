"""Every example runs as it is, and its loss falls."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
NEEDS = {
    "huggingface_factory": "transformers",
    "huggingface_trainer": "transformers",
    "lightning_module": "lightning",
    "litgpt_optimizer": "litgpt",
    "olmo_core_optimizer": "olmo_core",
    "optax_loop": "optax",
    "peft_lora": "peft",
    "torchtitan_optimizer": "torchtitan",
    "trl_sft": "trl",
}
SAYS = {"plain_pytorch": "equal bit for bit: True", "fsdp2": "clock at t = 100"}
LOOPS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "propose_and_judge")


def run(*words: str, **more: str) -> str:
    environment = {**os.environ, **OFFLINE, "OMP_NUM_THREADS": "1", **more}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_an_example_trains(name):
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    check(run(*(RANKS if name == "fsdp2" else []), str(EXAMPLES / f"{name}.py")), SAYS.get(name, ""))


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
def test_the_lora_example_trains_a_stand_in_of_peft(tmp_path):
    shutil.copy(Path(__file__).parents[1] / "fixtures" / "peft_stand_in.py", tmp_path / "peft.py")
    check(run(str(EXAMPLES / "peft_lora.py"), PYTHONPATH=str(tmp_path)), "parameters train")


def check(printed: str, words: str) -> None:
    """The loss fell, and the example said what it should."""
    losses = [float(number) for number in re.findall(r"\bloss'?:? +'?([0-9.e+-]+)", printed)]
    assert losses[-1] < 0.9 * losses[0]
    assert words in printed


@pytest.mark.slow
def test_proposals_are_judged_and_the_loop_says_what_came_of_them(tmp_path):
    printed = run(str(EXAMPLES / "propose_and_judge.py"), "--quick", "--ledger", str(tmp_path))
    assert len(printed.splitlines()) >= 4  # one per proposal, and the end
