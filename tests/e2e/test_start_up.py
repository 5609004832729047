"""A signal during start-up, long before the first step, asks for a requeue instead of killing the job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e2e.disturbed import config, started_ranks

HIT = """
import os, signal, sys

class Hit:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not Hit.done:
            Hit.done = True
            os.kill(os.getpid(), signal.SIGTERM)

Hit.done = False
sys.meta_path.insert(0, Hit())
from danalab.cli.app import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", [pytest.param("torch", marks=pytest.mark.slow), "danalab.train.trainer"])
def test_sigterm_during_the_imports_is_exit_code_85_and_the_run_starts_again(data, tmp_path, module):
    flags = {**config(data, tmp_path / "run").as_dict(), "iterations": 2}
    (tmp_path / "flags.json").write_text(
        json.dumps({k: v for k, v in flags.items() if v not in (None, {}, [])})
    )
    arguments = ["train", "--config", str(tmp_path / "flags.json"), "--json"]

    def start(hit: str) -> subprocess.CompletedProcess[str]:
        program = HIT.format(module=hit, arguments=arguments)
        here = Path(__file__).parent
        return subprocess.run(
            [sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=False
        )

    stopped = start(module)
    assert stopped.returncode == 85, stopped.stderr
    assert json.loads(stopped.stdout)["status"] == "interrupted"
    again = start("no such module")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["status"] == "finished"


@pytest.mark.slow
def test_sigterm_while_ranks_start_is_exit_code_85_and_no_rank_dies_of_it(data, tmp_path):
    flags = {**config(data, tmp_path / "run").as_dict(), "nproc": 2}
    (tmp_path / "flags.json").write_text(
        json.dumps({k: v for k, v in flags.items() if v not in (None, {}, [])})
    )
    command = [sys.executable, "-m", "danalab", "train", "--config", str(tmp_path / "flags.json"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while len(started_ranks(process.pid)) < 2:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate()
    assert process.returncode == 85, errors
    summary = json.loads(said)
    assert (summary["status"], summary["step"]) == ("interrupted", 0), errors
