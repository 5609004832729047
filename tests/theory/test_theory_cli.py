from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("scipy")

from danalab.cli.app import commands_of, main
from danalab.theory.curve import enable_x64

SMALL = {
    "plrf": "--v 60 --d 20 --steps 200 --runs 2",
    "phases": "--sizes 4 --points 9 --h 0.1",
    "hummingbird": "--v 40 --d 10 --steps 100 --kappas 0 1",
    "moe": "--v 40 --d 10 --experts 3 --steps 60 --kappas 0.75 --seeds 1",
    "tau": "--v 40 --d 10 --experts 3 --steps 64 --synthetic-steps 100",
    "schedules": "--d 200 --v 800 --horizon 1000 --points 5 --h 0.1",
    "limit": "--v 80 --d 20 --draws 1",
}


def call(verb: str, arguments: list[str]) -> None:
    assert main(["theory", verb, *arguments]) == 0


def test_every_verb_has_a_small_run_here():
    assert set(SMALL) == set(commands_of("theory"))


@pytest.mark.slow  # each compiles for seconds
@pytest.mark.parametrize("verb", SMALL)
def test_a_verb_writes_figure_data_and_parameters_and_prints_one_json_object(tmp_path, capsys, verb):
    call(verb, [*SMALL[verb].split(), "--out", str(tmp_path), "--json"])
    check_study(json.loads(capsys.readouterr().out), tmp_path)


def check_study(printed, tmp_path):
    for study in printed.get("studies", [printed]):
        assert study["findings"]
        files = study["files"]
        assert (tmp_path / f"{study['study']}.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / f"{study['study']}-dark.svg").is_file()
        assert json.loads((tmp_path / f"{study['study']}.json").read_text())["parameters"] is not None
        with np.load(files["npz"]) as arrays:
            assert arrays.files


def test_without_json_the_findings_are_printed_for_people(tmp_path, capsys):
    call("limit", [*SMALL["limit"].split(), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert "limit loss, deterministic equivalent" in out
    assert "limit.png" in out


def test_the_settings_of_jax_change_no_number():
    import jax

    from danalab.theory import PLRF, draw, simulate, standard

    model = PLRF(1.0, 0.5, 40, 10)
    spectrum = draw(model).spectrum
    algorithm = standard("dana-decaying", alpha=1.0, beta=0.5, d=10, trace=model.trace)
    plain = simulate(spectrum, algorithm, 50).risk
    with enable_x64(), jax.numpy_dtype_promotion("strict"), jax.transfer_guard("disallow"), jax.disable_jit():
        assert np.array_equal(simulate(spectrum, algorithm, 50).risk, plain)


@pytest.mark.parametrize(
    ("verb", "arguments", "word"),
    [
        ("plrf", "--alpha 0.2 --beta 0.1", "no phase"),
        ("plrf", "--v 10 --d 20", "v = 10 < d = 20"),
        ("plrf", "--v 4000000 --d 1000000", "GiB"),
        ("hummingbird", "--noise -1", "noise"),
        ("moe", "--experts 0", "experts"),
        ("limit", "--draws 0", "--draws"),
        ("limit", "--seed -1 --v 20 --d 5", "seed = -1"),
        ("hummingbird", "--lr -1 --v 20 --d 5", "lr = -1: must be positive"),
        ("hummingbird", "--delta 0 --v 20 --d 5", "delta = 0"),
        ("moe", "--clipsnr -2 --v 20 --d 5", "clipsnr = -2"),
        ("tau", "--steps 0", "steps = 0"),
        ("schedules", "--horizon 0", "horizon = 0"),
        ("schedules", "--points 1", "points = 1"),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_is_computed(tmp_path, verb, arguments, word, capsys):
    assert main(["theory", verb, *arguments.split(), "--out", str(tmp_path)]) == 2
    assert word in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
