"""The page on clusters: its SkyPilot file is a task whose command is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from danalab.cli._shared.flags import parse
from danalab.train.config.train_config import TrainConfig

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()


def train_flags(command: str) -> TrainConfig:
    words = shlex.split(re.sub(r"\\\n|\$\(.*?\)", " ", command))
    assert words[0] == "torchrun"
    place = words.index("-m")
    assert words[place : place + 3] == ["-m", "danalab", "train"]
    return parse(TrainConfig, words[place + 3 :], prog="danalab train", description="").flags


def test_the_file_of_skypilot_is_a_task_that_resumes_from_a_bucket():
    (text,) = re.findall(r"```yaml\n(# task\.yaml.*?)```", PAGE, re.DOTALL)
    task = yaml.safe_load(text)
    assert set(task) <= {
        "name",
        "resources",
        "num_nodes",
        "file_mounts",
        "volumes",
        "envs",
        "secrets",
        "workdir",
        "setup",
        "run",
    }
    assert set(task["resources"]) <= {"infra", "accelerators", "use_spot", "cpus", "memory", "disk_size", "any_of"}
    config = train_flags(task["run"])
    assert config.distributed_backend == "fsdp"
    assert any(str(config.run_dir).startswith(mount) for mount in task["file_mounts"])
    variables = set(re.findall(r"\$(SKYPILOT_\w+)", task["run"]))
    assert variables == {"SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS"}


def test_the_command_for_two_nodes_is_understood():
    (text,) = re.findall(r"```\n(torchrun .*?)```", PAGE, re.DOTALL)
    assert train_flags(text).heads == 24
