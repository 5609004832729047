"""The resonance model on the command line: its sizes, its learning rates, and what it does not take."""

from __future__ import annotations

import json

import pytest

from danalab.cli.app import main
from danalab.scaling import learning_rate


def planned(capsys, *arguments):
    assert main(["plan", "--arch", "resonance", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("size", "count"), [("small", 48_641_536), ("medium", 191_143_936)])
def test_the_plan_shows_the_counted_parameters_of_a_named_size(capsys, size, count):
    assert planned(capsys, "--size", size)["exact_params"] == count


def test_explicit_numbers_win_over_the_name_and_others_words_are_known(capsys):
    plan = planned(
        capsys, "--size", "small", "--model-dim", "256", "--num_layers=3", "--num-frequencies", "32"
    )
    assert [plan[key] for key in ("d_model", "n_layers", "num_frequencies", "n_heads", "mlp_dim")] == [
        256,
        3,
        32,
        8,
        704,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arch", "resonance"], "give a size"),
        (["--arch", "resonance", "--heads", "4"], "resonance has none"),
        (["--arch", "resonance", "--size", "smal"], "did you mean 'small'"),
        (["--arch", "enoki", "--size", "small"], "only with --arch resonance"),
        (["--arch", "enoki", "--heads", "4", "--mixer", "none"], "--mixer none: only with --arch resonance"),
        (
            ["--arch", "enoki", "--heads", "4", "--n-layers", "5"],
            "--heads 4 decides all dimensions: --n-layers is 3",
        ),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused_in_one_line(capsys, arguments, message):
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_adamw_has_the_usual_rate_and_others_their_share_of_it():
    assert learning_rate("resonance", "adamw", 5e7) == pytest.approx(6e-4)
    assert learning_rate("resonance", "adamw", 9.2e8) == pytest.approx(3e-4)
    for opt in ("adana", "ademamix", "d-muon", "lion"):
        share = learning_rate("enoki", opt, 5e7) / learning_rate("enoki", "adamw", 5e7)
        assert learning_rate("resonance", opt, 5e7) == pytest.approx(6e-4 * share)
    assert learning_rate("resonance", "muon", 5e7) == learning_rate("enoki", "muon", 5e7)
