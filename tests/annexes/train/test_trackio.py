import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from danalab.errors import MissingExtra
from danalab_annexes.train.trackers import TrackioMirror


class FakeTrackio:
    """Stands in for the library where only our calls are looked at."""

    def __init__(self):
        self.runs_by_name = {}

    def Api(self):  # noqa: N802 - the library's name
        if not self.runs_by_name:
            raise ValueError("Project 'danalab' does not exist")
        runs = [
            SimpleNamespace(name=name, delete=lambda name=name: self.runs_by_name.pop(name))
            for name in self.runs_by_name
        ]
        return SimpleNamespace(runs=lambda project: runs if project == "danalab" else [])

    def init(self, project, *, name, config, embed):
        print("words for people")
        assert (project, config["opt"], embed) == ("danalab", "adana", False)
        rows = self.runs_by_name[name] = []
        self.log, self.finish = (lambda row, step: rows.append((step, row))), lambda: print("done")


def test_a_resumed_run_has_each_row_once(tmp_path, monkeypatch, watching, capsys):
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    for first in (0, 1):  # the second job goes back to step 1
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0}\n' * first)
        mirror = TrackioMirror(watching())
        mirror.on_start(first)
        for step in (1, 2)[first:]:
            mirror.on_row({"step": step, "train/loss": 2.0 / step, "time": 3.0, "note": "text"})
        mirror.close()
    (name,) = fake.runs_by_name
    assert name == f"{tmp_path.name}-{json.loads((tmp_path / 'trackio.json').read_text())['id']}"
    assert fake.runs_by_name[name] == [(1, {"train/loss": 2.0}), (2, {"train/loss": 1.0, "seconds": 3.0})]
    assert capsys.readouterr().out == "", "standard output belongs to --json"


def test_without_trackio_the_extra_is_named_before_training(monkeypatch, watching):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtra, match=r"danalab\[trackio\]"):
        TrackioMirror(watching())


@pytest.mark.slow
def test_trackios_own_reader_finds_the_rows_of_a_resumed_run(tmp_path, data):
    pytest.importorskip("trackio")
    place = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    words = "train --d-model 16 --n-layers 1 --n-heads 1 --seq-len 16 --batch-size 4 --lr 1e-3 --json"
    words += " --log-interval 2 --eval-interval 0 --iterations 6 --trackio"
    places = ["--data", str(data), "--run-dir", str(tmp_path / "run")]
    for more in (["--iterations-to-run", "4"], []):
        done = subprocess.run(
            [sys.executable, "-m", "danalab", *words.split(), *places, *more], env=place, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["step"] == (4 if more else 6)
    name = f"run-{json.loads((tmp_path / 'run' / 'trackio.json').read_text())['id']}"
    read = "import sys, trackio; from trackio.sqlite_storage import SQLiteStorage; import json; "
    read += "print(json.dumps([[r['step'], r['train/loss']] for r in SQLiteStorage.get_logs('danalab', sys.argv[1])]))"
    found = subprocess.run([sys.executable, "-c", read, name], env=place, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert json.loads(found.stdout.splitlines()[-1]) == [[row["step"], row["train/loss"]] for row in rows]
