"""Packed ladders: one file that is read wherever a ladder is, loses no bit, and is refused when it is cut short."""

import json
import shutil

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.files import read_text
from danalab.ladder.rows import metrics_of, pack, read_ladder
from danalab.sweep.grid import expand
from danalab.sweep.rows import PACKED, RowsFile
from danalab.sweep.run import run_sweep
from danalab_bench.pages import RESULTS
from ladder.planted import plant

ODD = [5e-324, 1.7976931348623157e308, 0.1 + 0.2, -0.0, 1e22, 2**63, 1573060608.0, 1 / 3]


@pytest.fixture(scope="module")
def sweep(fixed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    run_sweep(folder, expand({"opt": ["adamw"], "seed": [0, 1]}, fixed), executor="inline")
    for number, file in enumerate(sorted(folder.glob("runs/*/metrics.jsonl"))):
        with file.open("a") as metrics:
            metrics.write(
                json.dumps({"step": 11 + number, "optim/odd": ODD[number], "moe/more": ODD[4 + number]}) + "\n"
            )
    return folder


def of_runs(rows):
    """Rows without their place, and without settings that have no value, with all metrics; to the last bit."""
    own = [{key: value for key, value in row.items() if key not in ("run", "curve", "points")} for row in rows]
    for row in own:
        row["settings"] = {key: value for key, value in row["settings"].items() if value is not None}
    return repr([(row, metrics) for row, metrics in zip(own, map(metrics_of, rows), strict=True)])


def test_runs_are_read_from_a_packed_file_to_the_last_bit(sweep, tmp_path, capsys):
    before = of_runs(read_ladder(sweep))
    lines = [json.loads(line) for line in (sweep / "runs" / "adamw-s1" / "metrics.jsonl").read_text().splitlines()]
    assert main(["ladder", "pack", str(sweep), "--out", str(tmp_path / "a")]) == 0
    assert f"2 runs in {tmp_path / 'a' / PACKED}" in capsys.readouterr().out
    assert main(["ladder", "pack", str(sweep / "runs"), "--out", str(tmp_path / "b")]) == 0
    assert [file.name for file in (tmp_path / "a").iterdir()] == [PACKED]
    for packed in (tmp_path / "a", tmp_path / "a" / PACKED, tmp_path / "b"):
        rows = read_ladder(packed)
        assert of_runs(rows) == before
        assert repr(metrics_of(rows[1])) == repr(lines)
    pack(read_ladder(tmp_path / "a"), tmp_path / "c")
    assert (tmp_path / "c" / PACKED).read_bytes() == (tmp_path / "a" / PACKED).read_bytes()
    assert str(sweep) not in read_text(tmp_path / "a" / PACKED), "nothing of the machine"


def test_every_number_of_metrics_survives(tmp_path):
    rows = read_ladder(plant(tmp_path / "ladder"))
    points = [{"step": step, "optim/odd": value} for step, value in enumerate(ODD)]
    pack([{**rows[0], "points": points}], tmp_path / "small")
    assert repr(metrics_of(read_ladder(tmp_path / "small")[0])) == repr(points)


def test_a_ladder_goes_on_from_a_packed_one_and_is_packed_again(fixed, sweep, tmp_path):
    pack(read_ladder(sweep), tmp_path / "packed")
    cells = expand({"opt": ["adamw"], "seed": [0, 1, 2]}, fixed)
    rows = run_sweep(tmp_path / "packed", cells, executor="inline").rows
    assert [path.name for path in (tmp_path / "packed" / "runs").iterdir()] == ["adamw-s2"]
    assert [row["name"] for row in rows] == ["adamw-s0", "adamw-s1", "adamw-s2"]
    pack(read_ladder(tmp_path / "packed"), tmp_path / "again")
    again = read_ladder(tmp_path / "again")
    assert of_runs(again[:2]) == of_runs(read_ladder(sweep))
    assert of_runs(again) == of_runs(read_ladder(tmp_path / "packed"))
    with pytest.raises(UserError, match="holds a ladder that is not packed; --out must be another folder"):
        pack(again, tmp_path / "packed")


def test_a_damaged_pack_is_one_clear_line_and_no_run_is_made_again(fixed, sweep, tmp_path, capsys):
    file = pack(read_ladder(sweep), tmp_path)
    whole = file.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for content in (*(whole[:end] for end in (0, 1, 5, 30, middle, len(whole) - 1)), flipped, b"no gzip at all"):
        file.write_bytes(content)
        for read in (lambda: read_ladder(tmp_path), lambda: read_ladder(file), lambda: RowsFile(tmp_path)):
            with pytest.raises(UserError) as error:
                read()
            assert str(file) in str(error.value)
            assert "\n" not in str(error.value)
    assert main(["report", str(tmp_path), "--tables-only"]) == 2
    assert "it must be a whole gzip file" in capsys.readouterr().err
    with pytest.raises(UserError, match="whole gzip file"):
        run_sweep(tmp_path, expand({"opt": ["adamw"], "seed": [0]}, fixed), executor="inline")
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_packed_is_refused(sweep, tmp_path, capsys):
    rows = read_ladder(sweep)
    with pytest.raises(UserError, match="the run adamw-s0 is there twice, with other values"):
        pack([*rows, {**rows[0], "seed": 5}], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert main(["ladder", "pack", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 2
    assert "it must be a ladder, a sweep or a folder of runs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_of_a_packed_ladder_are_compared_like_their_folders(sweep, tmp_path, capsys):
    pack(read_ladder(sweep), tmp_path)
    printed = []
    for runs in (sweep / "runs", tmp_path, tmp_path / PACKED):
        assert main(["compare", str(runs / "adamw-s0"), str(runs / "adamw-s1"), "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["runs"]
        printed.append([{key: value for key, value in row.items() if key != "val_bpb"} for row in rows])
    assert printed[0] == printed[1] == printed[2]
    assert main(["compare", str(tmp_path / "adamw-s7")]) == 2
    assert "adamw-s7" in capsys.readouterr().err


def test_a_report_of_a_packed_ladder_is_that_of_the_ladder(tmp_path, capsys):
    folder = plant(tmp_path / "ladder")
    pack(read_ladder(folder), tmp_path / "packed")
    printed = []
    for each in (folder, tmp_path / "packed"):
        assert main(["report", str(each), "--tables-only", "--bootstrap", "0"]) == 0
        printed.append(capsys.readouterr().out)
        shutil.rmtree(folder, ignore_errors=True)
    assert printed[0] == printed[1]


def test_the_stored_results_are_few_and_small_and_all_open():
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(files) <= 40
    assert sum(file.stat().st_size for file in files) < 6_000_000
    packed = [file for file in files if file.name == PACKED]
    assert packed
    assert all(any(map(metrics_of, read_ladder(file))) for file in packed)
