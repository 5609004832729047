"""Tab completion: installed where each shell looks, and with all verbs and flags."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from danalab.cli._shared.completion import script
from danalab.cli.app import COMMANDS, flag_types, main


def completed(*words: str) -> set[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in words)
    command = f"COMP_WORDS=(danalab {line}); COMP_CWORD={len(words)}; _danalab; echo ${{COMPREPLY[*]}}"
    done = subprocess.run(
        ["bash", "-c", f"{script('bash', flag_types())}\n{command}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_bash_completes_verbs_subverbs_and_flags():
    assert completed("") == set(COMMANDS.names())
    assert completed("ser") == {"serve"}
    assert {"prepare", "validate"} <= completed("data", "")
    assert "--iterations" in completed("train", "--it")
    assert "--iterations" in completed("train", "--heads", "3", "--it")
    assert "--tokenizer" in completed("data", "prepare", "--tok")
    assert "--tokenizer" not in completed("data", "--tok")


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/danalab"),
        ("zsh", ".zfunc/_danalab"),
        ("fish", ".config/fish/completions/danalab.fish"),
    ],
)
def test_it_is_written_where_the_shell_looks(shell, place, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert main(["--install-completion"]) == 0
    assert str(tmp_path / place) in capsys.readouterr().out
    assert "speedrun" in (tmp_path / place).read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(tmp_path / place)], check=True)


def test_an_unknown_shell_is_refused(capsys):
    assert main(["--install-completion", "csh"]) == 2
    assert "bash | zsh | fish" in capsys.readouterr().err
