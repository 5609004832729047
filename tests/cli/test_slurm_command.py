"""SLURM jobs on stand-ins for its commands, which run the scripts here: queued again just as often as steps remain."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from danalab.cli.app import main
from danalab.train.slurm import Resources, SlurmJob
from slurm_stand_ins import Cluster

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


RESTART = ["bash", str(SCRIPTS / "restart_enoki.sh"), "--opt", "adana", "--heads", "3"]


def test_a_run_in_segments_is_queued_until_its_last_step_and_no_longer(cluster):
    jobs, code, said = cluster.run(RESTART)  # 10 steps, 4 a job
    assert (jobs, code) == (3, 0)
    assert "finished at step 10" in said
    assert "--arch enoki --opt adana" in (cluster.folder / "arguments").read_text()


def test_a_preempted_job_is_queued_again(cluster):
    jobs, code, _ = cluster.run(
        RESTART, PREEMPTED_JOB="1", PREEMPTED_AFTER="2"
    )  # 4, 2, 4: then it is finished
    assert (jobs, code) == (3, 0)
    assert (cluster.folder / "steps").read_text().strip() == "10"


def test_a_job_that_sigterm_ends_before_training_begins_is_queued_again(cluster):
    jobs, code, said = cluster.run(RESTART, KILLED_JOBS="2")
    assert (jobs, code) == (5, 0)
    assert "step unknown: requeued" in said
    again = Cluster(cluster.folder / "again")
    jobs, code, said = again.run(RESTART, KILLED_JOBS="9")
    assert (jobs, code) == (4, 1)


def test_where_requeueing_is_refused_a_new_job_is_submitted_with_the_same_resources(cluster):
    # The first job queues the second with sbatch; what it asks for is looked at, then run as SLURM would.
    cluster.run(["true"])
    more = {
        "REQUEUE_REFUSED": "yes",
        "SLURM_JOB_ACCOUNT": "abc",
        "SLURM_GPUS_PER_NODE": "4",
        "SLURM_JOB_NAME": "n",
    }
    slurm = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(SCRIPTS.parent), **more}
    subprocess.run(
        RESTART, cwd=cluster.folder, env=cluster.environment(**slurm), check=True, capture_output=True
    )
    line = cluster.queue.read_text()
    assert "--job-name=n --account=abc --gpus-per-node=4 --time=1:00:00" in line
    assert line.strip().endswith("scripts/restart_enoki.sh --opt adana --heads 3")


def test_an_error_is_not_queued_again(cluster):
    jobs, code, said = cluster.run(RESTART, FAIL="yes")
    assert (jobs, code) == (1, 2)
    assert "not requeued" in said


def test_jobs_that_make_no_step_are_not_queued_for_ever(cluster):
    jobs, code, said = cluster.run(RESTART, STEPS_A_JOB="0")
    assert (jobs, code) == (4, 1)
    assert "three jobs in a row ended at step 0" in said


def test_outside_slurm_the_run_is_simply_made(cluster):
    done = subprocess.run(
        RESTART, cwd=cluster.folder, env=cluster.environment(), capture_output=True, check=False
    )
    assert done.returncode == 0
    assert not cluster.queue.exists()


# ---- danalab slurm ----


def slurm(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["slurm", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_script_asks_for_what_was_said(capsys):
    code, script, _ = slurm(
        capsys, "--gpus", "4", "--nodes", "2", "--account", "abc", "--time", "1-00:00:00", "--sbatch", "qos=low",
        "--setup", "module load cuda", "--dry-run", "--", "--heads", "12", "--name", "h12",
    )  # fmt: skip
    assert code == 0
    for line in (
        "--job-name=h12", "--requeue", "--signal=TERM@300", "--open-mode=append", "--nodes=2", "--ntasks-per-node=4",
        "--gpus-per-node=4", "--account=abc", "--time=1-00:00:00", "--qos=low",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert "\nmodule load cuda\n" in script
    assert "#SBATCH --array" not in script
    assert "--name h12" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no run: give flags"),
        (("--gpus", "-1", "--", "--heads", "3"), "--gpus -1"),
        (("--", "--heads", "3", "--keep-last", "1"), "--keep-last 1"),
        (("--", "--hads", "3"), "unknown flag --hads"),
        (("--bogus", "--", "--heads", "3"), "unknown flag --bogus"),
        (("--job-name", "a b", "--dry-run", "--", "--heads", "3"), "--job-name a b"),
    ],
)
def test_what_the_job_would_only_end_with_is_refused_before(capsys, arguments, words):
    code, _, said = slurm(capsys, *arguments)
    assert code == 2
    assert words in said


def test_the_job_is_submitted(capsys, tmp_path, monkeypatch):
    cluster = Cluster(tmp_path)
    monkeypatch.chdir(tmp_path)
    for key, value in cluster.environment().items():
        monkeypatch.setenv(key, value)
    code, out, _ = slurm(capsys, "--json", "--gpus", "0", "--", "--heads", "3", "--name", "h3")
    assert code == 0
    assert json.loads(out)["sbatch"] == "Submitted batch job 7"
    assert cluster.queue.read_text().strip() == "slurm/h3.sh"


def test_each_task_of_an_array_makes_its_own_run_and_is_queued_again_as_itself(cluster, monkeypatch):
    monkeypatch.chdir(cluster.folder)
    runs = [["--heads", "3"], ["--heads", "6", "--name", "with space"]]
    job = SlurmJob("grid", runs, Resources(gpus=0), cluster.folder / "logs", command=("danalab",))
    task = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    jobs, code, _ = cluster.run(["bash", str(job.write())], **task)
    assert (jobs, code) == (3, 0)
    assert "--heads 6 --name with space --json" in (cluster.folder / "arguments").read_text()
    assert (cluster.folder / "queue.requeued").read_text().split() == ["7_1", "7_1"]


def test_sizes_that_flags_name_make_different_runs(capsys):
    names = set()
    for words in (
        "--size small",
        "--size medium",
        "--size small --scheduler cos",
        "--size small --kappa 0.8",
    ):
        code, script, _ = slurm(capsys, "--dry-run", "--", "--arch", "resonance", *words.split())
        assert code == 0
        names |= set(re.findall(r"--name (\S+)\)", script))
        assert "None" not in script
    assert len(names) == 4


def test_what_follows_the_flags_is_quoted_in_the_script(capsys):
    _, script, _ = slurm(
        capsys, "--dry-run", "--", "--heads", "3", "--name", "x", "--data", "a'; touch pwned #"
    )
    line = next(line for line in script.splitlines() if line.startswith("run=("))
    done = subprocess.run(
        ["bash", "-c", line + '; printf "%s\n" "${run[@]}"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "a'; touch pwned #"


def test_without_sbatch_the_script_is_left_with_the_way_to_submit_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, said = slurm(capsys, "--", "--heads", "3", "--name", "x")
    assert code == 2
    assert "sbatch slurm/x.sh" in said
    assert os.access(tmp_path / "slurm" / "x.sh", os.X_OK)


# ---- the other scripts ----


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_have_no_syntax_errors(script):
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_a_sweep_is_one_job_a_point_with_a_name_of_its_own(cluster):
    sweep = [
        "bash",
        str(SCRIPTS / "sweep.sh"),
        "--heads",
        "3 6",
        "--lr_multipliers",
        "0.5 1",
        "--",
        "--seed",
        "1",
    ]
    subprocess.run(sweep, cwd=cluster.folder, env=cluster.environment(), check=True, capture_output=True)
    lines = cluster.queue.read_text().splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("--job-name=enoki-adana-h3-lr0.5 ")
    assert "--lr_multiplier 0.5 --name enoki-adana-h3-lr0.5 --seed 1" in lines[0]


def test_a_sweep_says_how_it_is_used():
    done = subprocess.run(
        ["bash", str(SCRIPTS / "sweep.sh"), "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("A grid of runs")
    assert "--lr_multipliers" in done.stdout


def test_the_environment_wins_over_config_local_and_a_cluster_can_be_named(tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("config.sh", "clusters.conf"):
        (scripts / name).write_text((SCRIPTS / name).read_text())
    (scripts / "config.local").write_text("DATASETS_DIR=/file\nRESULTS_BASE_FOLDER=/results\n")
    (scripts / "clusters.local").write_text("mine  login*|node*  gcc\n")

    def settings(**environment: str) -> str:
        given = {"PATH": os.environ["PATH"], "HOSTNAME": "elsewhere", **environment}
        command = ["bash", str(scripts / "config.sh")]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "DATASETS_DIR=/file\nRESULTS_BASE_FOLDER=/results" in settings()
    assert "DATASETS_DIR=/here\nRESULTS_BASE_FOLDER=/results" in settings(DATASETS_DIR="/here")
    assert "DANALAB_CLUSTER=local" in settings()
    assert "DANALAB_CLUSTER=mine\nDANALAB_MODULES=gcc" in settings(HOSTNAME="node07")
    assert "DANALAB_CLUSTER=narval" in settings(SLURM_CLUSTER_NAME="narval")
    assert "DANALAB_CLUSTER=local" in settings(SLURM_CLUSTER_NAME="narval", DSTAR_CLUSTER="local")
    assert "known: mine narval" in settings(DANALAB_CLUSTER="nowhere")


def test_no_value_of_a_script_ends_its_line(tmp_path, monkeypatch):
    strange = tmp_path / "a b $(touch PWNED) 'c' 50%"
    strange.mkdir()
    monkeypatch.chdir(strange)
    job = SlurmJob("name", [["--name", "it's"]], Resources(), strange)
    options = [
        line.removeprefix("#SBATCH ") for line in job.text().splitlines() if line.startswith("#SBATCH")
    ]
    output = next(shlex.split(option)[0] for option in options if option.startswith("--output"))
    assert output == f"--output={strange}/name.log".replace("%", "%%")
    subprocess.run(["bash", "-n", str(job.write())], check=True)
    assert not list(tmp_path.rglob("PWNED"))
