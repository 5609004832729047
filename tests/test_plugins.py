"""Code from outside the package: optimizers by address, plugins of every kind, in processes and in run folders."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from danalab import plugins
from danalab.chat.rewards import REWARDS, Scorer
from danalab.chat.tasks import TASKS, make_task
from danalab.cli.app import COMMANDS, main
from danalab.data.sources import SOURCES
from danalab.errors import UserError
from danalab.judge.workers import read_contestant
from danalab.optim import build_optimizer, optimizer_spec
from danalab.optim.catalogue import OPTIMIZERS
from danalab.optim.schedules import SCHEDULES
from danalab.registry import Registry
from danalab.sweep.jobs import Job
from danalab.train.callbacks.base import CALLBACKS
from text_data import prepare_lines

CODE = '''
import torch

class Signs(torch.optim.Optimizer):
    """The sign of each gradient."""

    def __init__(self, params, lr=1e-3, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                p.sub_(group["lr"] * group["scale"] * p.grad.sign())

def without_a_rate(params):
    pass
'''


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(CODE)
    return file


def test_it_is_built_with_its_settings(own):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.tensor([1.0, -1.0, 2.0])
    build_optimizer(f"{own}:Signs", [p], lr=0.1, scale=2.0).step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.8, 1.2, 0.8]))
    assert optimizer_spec(f"{own}:Signs").summary == "an optimizer of your own"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Sings", "did you mean 'Signs'"),
        ("without_a_rate", "it takes no lr"),
        ("_hidden", "there is no '_hidden' in it"),
    ],
)
def test_a_wrong_name_is_one_line(own, name, message):
    with pytest.raises(UserError, match=message):
        optimizer_spec(f"{own}:{name}")


def test_a_file_that_fails_is_named(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('not today')")
    with pytest.raises(UserError, match=r"broken\.py: ValueError as it was imported: not today"):
        optimizer_spec(f"{broken}:Mine")


def test_a_run_trains_with_it_and_refuses_to_resume_with_other_code(own, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    data = prepare_lines(tmp_path / "data", 60, 10, words=["one", "two", "three"], per_line=9)
    size = "--d-model 16 --n-layers 1 --n-heads 1 --seq-len 8 --global-batch 2 --eval-interval 0 --eval-batches 1"
    run = ["train", "--data", str(data), "--run-dir", str(tmp_path / "run"), *size.split(), "--lr", "0.01",
           "--opt", f"{own}:Signs", "--scale", "0.5", "--no-tune-malloc"]  # fmt: skip
    assert main([*run, "--iterations", "2"]) == 0
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert list(record["plugins"]) == [f"{own}:Signs"]
    assert main([*run, "--iterations", "2", "--extend-to", "3"]) == 0
    own.write_text(CODE + "\n# changed\n")
    capsys.readouterr()
    assert main([*run, "--iterations", "2", "--extend-to", "4"]) == 2
    assert f"--opt {own}:Signs has other code here than there" in capsys.readouterr().err


PLUGIN = (
    CODE
    + """
from danalab.chat.rewards import REWARDS
from danalab.chat.tasks import TASKS, Problem, Task
from danalab.data.sources import SOURCES, Source
from danalab.optim.registry import register
from danalab.optim.schedules import SCHEDULES
from danalab.registry import Registry
from danalab.train.callbacks.base import CALLBACKS, Callback


class Twice(Callback):
    name = "twice"

    def metrics(self, step):
        return {"own/twice": 2.0 * step}


class Counting(Source):
    name, licence, summary, ready = "own-counting", "public domain", "numbers", True

    def iter_documents(self):
        return (f"{i} comes before {i + 1}" for i in range(400))

    def size_bytes(self):
        return 10_000

    def identity(self):
        return "own-counting 400"


class Echo(Task):
    name, summary = "own-echo", "say it again"

    def __len__(self):
        return 9

    def problem(self, position):
        return Problem(f"say {position}", str(position), "own-length")


register("own-signs", Signs, summary="the sign of each gradient")
SCHEDULES.add("own-half", lambda steps, warmup: lambda i: 0.5)
CALLBACKS.add("own-twice", Twice)
SOURCES.add(Counting.name, Counting)
TASKS.add(Echo.name, Echo)
REWARDS.add("own-length", lambda problem, answer: float(len(answer)))
"""
)
RUN = """
--data own-counting --tokenizer bytes --opt own-signs --scale 0.5 --scheduler own-half --lr 0.01 --d-model 16
--n-layers 1 --n-heads 1 --seq-len 8 --global-batch 2 --eval-interval 0 --eval-batches 1 --log-interval 1
--iterations 2 --no-tune-malloc
""".split()  # noqa: SIM905


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A plugin that registers something of every kind; the registries are restored."""
    monkeypatch.setenv(plugins.ENVIRONMENT, "")
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path / "data"))
    for registry in (OPTIMIZERS, SCHEDULES, CALLBACKS, SOURCES, TASKS, REWARDS):
        registry.names()  # loads the annexes, whose modules register only once
        monkeypatch.setattr(registry, "_items", dict(registry._items))
    monkeypatch.setattr(plugins, "_plugins", {})
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    return file


def test_a_plugin_adds_to_every_registry_and_a_changed_one_refuses_to_resume(plugin, tmp_path, capsys):
    run = ["train", *RUN, "--run-dir", str(tmp_path / "run")]
    assert main([*run]) == 2, "nothing is known without it"
    assert main([*run, "--plugin", str(plugin)]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["own/twice"], row["lr"]) for row in rows if "train/loss" in row] == [(2.0, 0.005), (4.0, 0.005)]
    record = json.loads((tmp_path / "run" / "config.json").read_text())["plugins"]
    assert record == {str(plugin): hashlib.sha256(PLUGIN.encode()).hexdigest()}
    task, _ = make_task("own-echo")
    assert Scorer()(task[3], "four") == 4.0
    capsys.readouterr()
    assert main(["optim", "list", "--opt", "own-signs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["optimizers"][0]["summary"] == "the sign of each gradient"
    plugin.write_text(PLUGIN + "# changed\n")
    assert main([*run, "--plugin", str(plugin), "--extend-to", "3"]) == 2
    line = capsys.readouterr().err
    assert f"--plugin {plugin} has other code here than there" in line
    assert line.count("\n") == 1


def test_a_file_of_flags_may_name_plugins_and_printed_ones_do(plugin, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(f"plugin: {plugin}\nopt: own-signs\nscale: 2.0\n")
    assert main(["optim", "schedules", "--config", str(tmp_path / "absent.yaml")]) == 2
    assert main(["plan", "--config", str(file), "--heads", "1", "--print-config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["plugin"], printed["opt"]) == ([str(plugin)], "own-signs")


def test_processes_and_scripts_of_runs_load_them(plugin, tmp_path, monkeypatch):
    plugins.use([plugin])
    assert Job(tmp_path / "run", {"opt": "own-signs"}).flags()[2] == f"--plugin={plugin}"
    lines = "from danalab.optim.schedules import get_schedule as g; print(g('own-half', 9)(3))"
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0.5\n", "")


def test_its_code_is_part_of_what_is_judged(plugin):
    plugins.use([plugin])
    before, other = read_contestant("own-signs").digest, read_contestant("adamw").digest
    plugin.write_text(PLUGIN + "# changed\n")
    assert (read_contestant("own-signs").digest != before, read_contestant("adamw").digest) == (True, other)


def test_an_installed_plugin_is_loaded_and_a_broken_one_is_left_out(tmp_path):
    (tmp_path / "fine.py").write_text(
        "from danalab.optim.schedules import SCHEDULES\n\n\n"
        "def register():\n    SCHEDULES.add('of-a-package', lambda steps, warmup: lambda i: 0.25)\n"
    )
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    facts = tmp_path / "own-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{plugins.GROUP}]\na = broken\nb = fine:register\n")
    lines = "from danalab.optim.schedules import SCHEDULES, get_schedule as g\nprint(g('of-a-package', 9)(3))"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "0.25\n"
    assert done.stderr == "plugin broken is left out: RuntimeError: not today\n"


def test_a_command_of_an_installed_plugin_has_flags_and_help(tmp_path):
    (tmp_path / "greeting.py").write_text(
        "import sys\nfrom dataclasses import dataclass\nfrom danalab.cli.app import COMMANDS\n\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Flags:\n"
        '    name: str = \'you\'\n    """Who is greeted."""\n\n\n'
        'def run(flags: Flags) -> None:\n    """Greet somebody."""\n    print(\'hello\', flags.name)\n\n\n'
        "COMMANDS.add('greet', sys.modules[__name__])\n"
    )
    facts = tmp_path / "own-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{plugins.GROUP}]\na = greeting\n")
    code = "from danalab.cli.app import main; main(['greet', '--name', 'me']); main(['greet', '--help'])"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("hello me\nusage: danalab greet")
    assert "Who is greeted." in done.stdout


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (None, "there is no such file"),
        ("raise ValueError('not\\ntoday')", "ValueError as it was imported: not today"),
        ("from danalab.optim.schedules import SCHEDULES; SCHEDULES.add('cos', None)", "'cos' is registered twice"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_one_line(code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(plugins.ENVIRONMENT, "")
    file = tmp_path / "bad.py"
    if code is not None:
        file.write_text(code)
    assert main(["optim", "list", "--plugin", str(file)]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


@pytest.mark.slow
def test_ranks_load_them(plugin, tmp_path):
    words = ["train", *RUN, "--run-dir", str(tmp_path / "run"), "--plugin", str(plugin), "--nproc", "2"]
    done = subprocess.run([sys.executable, "-m", "danalab", *words, "--device", "cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(plugin) in json.loads((tmp_path / "run" / "config.json").read_text())["plugins"]


def test_annexes_are_loaded_by_the_registries_of_their_kind_alone(tmp_path, monkeypatch):
    (tmp_path / "annexes_of_a_test").mkdir()
    (tmp_path / "annexes_of_a_test" / "__init__.py").write_text("MODULES = {'colour': ('reds',)}")
    (tmp_path / "annexes_of_a_test" / "reds.py").write_text(
        "from danalab.plugins import colours\ncolours.add('red', 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "ANNEXES", "annexes_of_a_test")
    colours: Registry[int] = Registry("colour")
    monkeypatch.setattr(plugins, "colours", colours, raising=False)
    assert "red" not in Registry("sound")
    assert "annexes_of_a_test.reds" not in sys.modules
    assert colours.get("red") == 1
    assert colours.plugin("red") == ""


def test_the_core_works_without_annexes(monkeypatch):
    monkeypatch.setattr(plugins, "ANNEXES", "annexes_that_are_not_installed")
    assert "red" not in Registry("colour")


def test_a_plugin_adds_a_command(tmp_path, monkeypatch, capsys):
    """The file is in the environment, as in the processes of a command, or an installed package's entry point."""
    (tmp_path / "mine.py").write_text(
        "import sys\nfrom dataclasses import dataclass\nfrom danalab.cli.app import COMMANDS\n\n"
        "@dataclass\nclass Flags:\n    word: str = 'ho'\n    '''What is said.'''\n\n"
        "def run(flags):\n    '''Say something.'''\n    print(flags.word)\n\n"
        "COMMANDS.add('say', sys.modules[__name__])\n"
    )
    monkeypatch.setattr(COMMANDS, "_items", COMMANDS.bundled())  # annexes add to it once in a process
    assert main(["say"]) == 2
    assert "unknown command 'say'" in capsys.readouterr().err
    monkeypatch.setenv(plugins.ENVIRONMENT, str(tmp_path / "mine.py"))
    assert main(["say", "--word", "hum"]) == 0
    assert capsys.readouterr().out == "hum\n"
    assert main(["--help"]) == 0
    assert "\nplug-ins\n  say       Say something.\n" in capsys.readouterr().out
