"""Damaged ladders, Hugging Face folders, exports and plans: no traceback, no hang, documented exit codes."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.test_fuzz_input import EDITS, dumped

from cli.test_fuzz import DAMAGES, RUN, ends_well
from danalab.cli.app import main
from experiments.planted import plant

TRIES = [15, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, "", "../../x", "<script>", -1, 0, 1e300, 10**400, 10**12, [], {}, [1], {"a": 1}]),
    st.integers(), st.floats(), st.text(max_size=5), st.floats().map(str),
)  # fmt: skip


def damage(data: st.DataObject, file: Path, entries: list[dict[str, Any]]) -> None:
    """Change one entry of the JSON file, or the file as a whole."""
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from(entries))
        key = data.draw(st.sampled_from(sorted(place)))
        if data.draw(st.booleans()):
            place[key] = data.draw(VALUES)
        else:
            del place[key]
        file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    else:
        damaged = DAMAGES[data.draw(st.sampled_from(sorted(DAMAGES)))](file.read_bytes())
        file.unlink() if damaged is None else file.write_bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("tries", TRIES)
def test_a_ladder_with_a_damaged_file_is_read_or_refused(tries, tmp_path):
    sound = plant(tmp_path / "sound", seeds=1)

    @settings(max_examples=tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ladder = Path(shutil.copytree(sound, Path(folder) / "ladder"))
            curves = sorted(path.name for path in ladder.glob("*.jsonl"))
            file = ladder / data.draw(st.sampled_from(["ladder.jsonl", data.draw(st.sampled_from(curves))]))
            damage(data, file, [json.loads(line) for line in file.read_text().splitlines()])
            ends_well(["report", "--tables-only", str(ladder), "--bootstrap=2", "--json"])
            assert sorted(path.name for path in Path(folder).iterdir()) == ["ladder"]

    attempt()


@pytest.mark.parametrize("tries", TRIES)
def test_a_hugging_face_folder_with_a_damaged_file_is_imported_or_refused(tries, tmp_path):
    export = tmp_path / "export"
    assert main(["export", str(RUN), "--out", str(export)]) == 0
    files = sorted(path.name for path in export.iterdir() if path.suffix in (".json", ".safetensors"))

    @settings(max_examples=tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(shutil.copytree(export, Path(folder) / "export"))
            file = source / data.draw(st.sampled_from(["config.json", *files]))
            if file.name == "config.json":
                damage(data, file, [json.loads(file.read_text())])
            else:
                damaged = DAMAGES[data.draw(st.sampled_from(sorted(DAMAGES)))](file.read_bytes())
                file.unlink() if damaged is None else file.write_bytes(damaged)
            ends_well(["import", str(source), "--out", str(Path(folder) / "run")])

    attempt()


PLAN = {
    "opts": ["adamw", "adana"], "sizes": [{"d_model": 16, "n_layers": 1, "n_heads": 2, "vocab_size": 320}],
    "multipliers": [0.5, 1], "seeds": [0, 1], "trials": 3,
    "fixed": {"data": str(RUN.parent / "data"), "seq_len": 8, "batch_size": 2, "iterations": 3},
}  # fmt: skip


@pytest.mark.parametrize("tries", TRIES)
def test_a_plan_with_odd_values_is_read_or_refused(tries, tmp_path):
    file = tmp_path / "x.json"

    @settings(max_examples=tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(EDITS)
    def attempt(edits: Any) -> None:
        file.write_text(dumped(PLAN, edits))
        with tempfile.TemporaryDirectory() as folder:
            ends_well(["ladder", str(file), "--dry-run", "--out", str(Path(folder) / "out")])
            assert sorted(path.name for path in Path(folder).iterdir()) in ([], ["out"])

    attempt()
