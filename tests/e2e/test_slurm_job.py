"""A real run in SLURM jobs on stand-ins: segments and a preemption, as often queued again as steps remain."""

from __future__ import annotations

import math
import signal
import subprocess
import time

import pytest

from danalab.cli.app import main
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from e2e.disturbed import STEPS, assert_same, config
from slurm_stand_ins import Cluster


@pytest.mark.slow
@pytest.mark.parametrize("preempted", [False, True])
def test_a_run_in_jobs_is_the_run_in_one(data, tmp_path, undisturbed, monkeypatch, preempted):
    cluster = Cluster(tmp_path)
    monkeypatch.chdir(tmp_path)
    for key, value in cluster.environment().items():
        monkeypatch.setenv(key, value)
    segment = 25
    flags = flags_of(config(data, tmp_path / "run"))
    words = [*flags, "--iterations-to-run", str(segment)]
    assert main(["slurm", "--gpus", "0", "--job-name", "job", "--", *words]) == 0
    assert cluster.queue.read_text().strip() == "slurm/job.sh"

    def preempt(job: subprocess.Popen[str], number: int) -> None:
        if preempted and number == 1:
            while len(read_rows(tmp_path / "run" / "metrics.jsonl")) < segment + 5:
                time.sleep(0.01)
            job.send_signal(signal.SIGTERM)

    jobs, code, said = cluster.run(["bash", "slurm/job.sh"], preempt)
    assert code == 0, said
    assert jobs == math.ceil(STEPS / segment) + preempted
    assert ("stopped by SIGTERM" in said) == preempted
    assert_same(RunFolder(tmp_path / "run"), undisturbed)


def flags_of(settings: TrainConfig) -> list[str]:
    """A configuration as the flags that say it."""
    given = {
        name: value for name, value in settings.as_dict().items() if value != TrainConfig().as_dict()[name]
    }
    return [
        f"--{'' if value is not False else 'no-'}{name.replace('_', '-')}{'' if value is False else f'={value}'}"
        for name, value in given.items()
    ]
