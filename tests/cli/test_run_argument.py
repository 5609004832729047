"""generate, export and eval take the run folder as first argument or by --run, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from danalab.cli.app import main

FIXTURES = Path(__file__).parents[1] / "fixtures" / "runs_0_1"
RUN = str(FIXTURES / "single")
VERBS = {
    "generate": ["--max-new-tokens", "4", "--temperature", "0"],
    "eval": ["--data", str(FIXTURES / "data"), "--device", "cpu"],
    "export": ["--dtype", "bf16"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_run_is_the_first_argument_or_a_flag(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    found = []
    for number, given in enumerate(([RUN], ["--run", RUN])):
        out = ["--out", str(tmp_path / str(number))] if verb == "export" else []
        assert main([verb, *given, *VERBS[verb], *out, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        for sample in printed.get("samples", []):
            assert sample["tokens"] <= 4
            del sample["tokens_per_second"]
        found.append({key: value for key, value in printed.items() if key not in ("folder", "seconds")})
    assert found[0] == found[1]


@pytest.mark.parametrize("verb", VERBS)
def test_it_is_given_once(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = ["--out", str(tmp_path / "out")] if verb == "export" else []
    assert main([verb, RUN, "--run", RUN, *VERBS[verb], *out]) == 2
    assert "give the run folder once" in capsys.readouterr().err
    assert main([verb, *VERBS[verb], *out]) == 2
    assert "run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([RUN, "--temperature", "inf"], "temperature is inf; it must be finite"),
        ([RUN, "--temperature", "nan"], "temperature is nan; it must be finite"),
        ([RUN, "--prompt", "a\udcff"], "surrogate"),
        (["/nowhere\udcff"], "nowhere"),
        (["/nowhere\0"], "nowhere"),
        (["--from", "/nowhere\udcff"], "nowhere"),
        (["--from", "/nowhere\0"], "nowhere"),
    ],
)
def test_generate_refuses_what_is_no_number_text_or_path(words, message, capsys):
    assert main(["generate", *words, "--max-tokens", "1"]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert len(said.splitlines()) == 1
