"""Random flags, configurations and damaged run folders: no traceback, no hang, documented exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from danalab.cli.app import COMMANDS, commands_of, main
from danalab.train.config.flags import flag
from experiments.planted import plant

TRIES = [20, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
NASTY = [
    "", "0", "-1", "1", "3", "7.5", "1e3", "1e-400", "1e400", "nan", "-inf", "none", "None", "true", "False", "1" * 400,
    "9" * 5000, str(2**63), "4000000000", "100000000000", "a\0b", "../../x", "/dev/null", "/", "[", "{}", "a,b", "a=b",
    "=", "--", "x\ny", "\ud800", "é", "bpe-²", "cuda:99", "bf16", "adamw", "enoki", "resonance", "8:1,16:2", "8:0",
    "* 3", "&a", " ", "a b", "%s", "{0}",
]  # fmt: skip


FLAG_TYPES = {
    f"{verb} {name}".rstrip(): flags for verb in COMMANDS for name, (flags, _) in commands_of(verb).items()
}
del FLAG_TYPES["ladder"]


@contextlib.contextmanager
def ended_within(seconds: int) -> Iterator[None]:
    """Seconds of this process's CPU time: a busy machine is no hang. One that sleeps meets the test's own limit."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"still running after {seconds} s of CPU time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def ends_well(words: list[str], codes: tuple[int, ...] = (0, 2)) -> None:
    """The command ends with a documented code, and says one line where it fails."""
    said = io.StringIO()
    with ended_within(30), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code or 0
    assert code in codes, (words, said.getvalue())
    if code == 2:
        errors = [line for line in said.getvalue().splitlines() if line.startswith("danalab: error: ")]
        assert len(errors) == 1, (words, said.getvalue())


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    verb = draw(st.sampled_from(sorted(FLAG_TYPES)))
    fields = [field.name for field in dataclasses.fields(FLAG_TYPES[verb]) if field.init]
    values = st.one_of(
        st.sampled_from(NASTY), st.text(max_size=8), st.integers().map(str), st.floats().map(str)
    )
    words = verb.split()
    for _ in range(draw(st.integers(0, 5))):
        word = draw(
            st.one_of(st.sampled_from(fields).map(flag), st.sampled_from(["stray", "--nonsense", "-x"]))
        )
        form = draw(st.integers(0, 2))
        words += [word] if form == 0 else [f"{word}={draw(values)}"] if form == 1 else [word, draw(values)]
    return words


@pytest.mark.slow
@pytest.mark.parametrize("tries", TRIES)
def test_any_flags_of_any_verb_are_taken_or_refused(tries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @settings(max_examples=10 * tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(command_lines())
    def attempt(words: list[str]) -> None:
        ends_well([*words, "--print-config"])
        if words[0] == "plan":
            ends_well(words)

    attempt()


def test_every_verb_prints_its_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    needed = {
        "out": "x",
        "input": "x",
        "vocab_size": "300",
        "run": "x",
        "local_dir": "x",
        "from_": "x",
        "heads": "3",
    }
    for verb, flags in FLAG_TYPES.items():
        if verb in {"mid", "sft", "rl"}:  # they continue a run, whose configuration they read
            continue
        words = []
        for field in dataclasses.fields(flags):
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if "positional" in str(field.type).lower():
                words.append("x")
            elif (
                field.init
                and (required or verb == "train")
                and field.name in needed
                and field.name != "vocab_size"
            ):
                words += [flag(field.name), needed[field.name]]
            elif required and field.init:
                words += [flag(field.name), needed.get(field.name, "3")]
        if verb == "train":
            words = ["--heads", "3"]
        assert main([*verb.split(), *words, "--print-config"]) == 0, (verb, capsys.readouterr().err)
        printed = capsys.readouterr().out
        (tmp_path / "again.yaml").write_text(printed)
        assert main([*verb.split(), "--config", "again.yaml", "--print-config"]) == 0, (
            verb,
            capsys.readouterr().err,
        )
        if verb != "train":
            assert capsys.readouterr().out == printed
        capsys.readouterr()


ENTRIES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(NASTY)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.slow
@pytest.mark.parametrize("tries", TRIES)
def test_any_configuration_file_is_taken_or_refused(tries, tmp_path):
    names = [field.name for field in dataclasses.fields(FLAG_TYPES["train"])]
    file = tmp_path / "run.yaml"
    mappings = st.dictionaries(st.sampled_from([*names, "betas", "x"]), ENTRIES, max_size=4).map(json.dumps)

    @settings(max_examples=5 * tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.one_of(mappings.map(str.encode), st.binary(max_size=40), st.text(max_size=40).map(encoded)))
    def attempt(content: bytes) -> None:
        file.write_bytes(content)
        for verb in ("train", "plan", "ladder", "bench moe"):
            ends_well([*verb.split(), "--config", str(file), "--print-config"])

    attempt()


WORDS = [
    "012", "-007", "0x10", "0o17", "0b1", "1_000", "1:30", "1e-3", ".5", "1.", "+3", "1e999", ".inf", ".nan", "yes",
    "no", "on", "off", "y", "true", "NULL", "~", "", "2024-01-01", "<<", "=", "~/x", "~nobody/x", "$HOME/x",
    "$ABSENT/x", "./~", "'012'", "!!int 3", "!!str 3", "!!bool yes", "!!python/name:os.system x", "!x 1", "*a", "&a 1",
    "[1, 012]", "{a: 1, a: 2}", "{<<: {a: 1}}", "{1: a, 1.0: b}", "small:1,~/x:2", "FILE.py:Name", "|\n  x", "> \n  y",
    "# none", "- 1", "x: y",
]  # fmt: skip
KEPT = ("heads", "d_model", "n_layers", "n_heads", "size")


@pytest.mark.parametrize("tries", [8, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_any_word_of_yaml_for_any_setting_ends_right_or_in_one_line(tries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [field.name for field in dataclasses.fields(FLAG_TYPES["train"]) if field.name not in KEPT]
    lines = st.tuples(st.sampled_from([*names, "<<", "betas", "extra"]), st.sampled_from(WORDS)).map(
        ": ".join
    )
    before = sorted(tmp_path.iterdir())

    @settings(max_examples=tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(lines, max_size=4).map("\n".join))
    def attempt(text: str) -> None:
        (tmp_path / "run.yaml").write_text(text)
        for words in (["train", "--print-config"], ["plan", "--json"]):
            ends_well([words[0], "--heads", "2", "--config", "run.yaml", *words[1:]])
        assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "run.yaml"]

    attempt()


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "text",
    ["a: &a [*a]", "a: &a {b: *a}", "[" * 100_000, "{a: " * 5_000, "lr: " + "1" * 5000, "lr: 2026-13-45",
     "a: !!python/object:os.system x"],
    ids=range(7),
)  # fmt: skip
@pytest.mark.parametrize("verb", ["train", "ladder FILE --dry-run", "sweep FILE --dry-run"])
def test_depths_and_tags_in_yaml_are_refused(text, verb, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    words = verb.replace("FILE", str(file)).split()
    ends_well(words if len(words) > 1 else [*words, "--config", str(file)], codes=(2,))


DAMAGES = {
    "deleted": lambda data: None,
    "empty": lambda data: b"",
    "halved": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "object": lambda data: b"{}",
    "list": lambda data: b"[]",
    "null": lambda data: b"null",
    "text": lambda data: b"\xff\xfe\x00nonsense",
    "deep": lambda data: b"[" * 100_000,
    "number": lambda data: b"1" * 5000,
}


@pytest.mark.slow
@pytest.mark.parametrize("tries", TRIES)
def test_a_run_folder_with_one_damaged_file_is_read_or_refused(tries, run):
    sound = run
    files = sorted(str(path.relative_to(sound)) for path in sound.rglob("*") if path.is_file())
    json_files = [name for name in files if name.endswith((".json", ".jsonl"))]
    record = json.loads((sound / "config.json").read_text())

    @settings(max_examples=tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            shutil.copytree(sound, run)
            kind = data.draw(st.sampled_from(["file", "byte", "entry"]))
            target = run / data.draw(st.sampled_from(files if kind != "entry" else json_files))
            content = target.read_bytes()
            if kind == "file":
                damaged = DAMAGES[data.draw(st.sampled_from(sorted(DAMAGES)))](content)
            elif kind == "byte":
                place = data.draw(st.integers(0, max(0, len(content) - 1)))
                damaged = content[:place] + bytes([data.draw(st.integers(0, 255))]) + content[place + 1 :]
            else:
                target = run / "config.json"
                part = data.draw(st.sampled_from(["config", "model"]))
                changed = json.loads(json.dumps(record))
                place = changed[part]
                place[data.draw(st.sampled_from(sorted(place)))] = data.draw(ENTRIES)
                damaged = encoded(json.dumps(changed))
            target.unlink() if damaged is None else target.write_bytes(damaged)
            for words in (
                ["compare", str(run)], ["generate", "--run", str(run), "--max-tokens", "2", "--json"],
                ["export", str(run), "--out", str(Path(folder) / "out")],
                ["eval", "--run", str(run), "--data", str(sound.parent / "set")],
            ):  # fmt: skip
                ends_well(words)

    attempt()


@pytest.mark.parametrize("tries", [6, TRIES[1]])
def test_a_hugging_face_folder_with_a_damaged_file_is_imported_or_refused(tries, run, tmp_path):
    export = tmp_path / "export"
    assert main(["export", str(run), "--out", str(export)]) == 0
    described = json.loads((export / "config.json").read_text())

    @settings(max_examples=tries, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def attempt(data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(shutil.copytree(export, Path(folder) / "export"))
            names = sorted(path.name for path in source.iterdir() if path.suffix in (".json", ".safetensors"))
            target = source / data.draw(st.sampled_from(["entry", *names]))
            if target.name == "entry":
                changed = {**described, data.draw(st.sampled_from(sorted(described))): data.draw(ENTRIES)}
                (source / "config.json").write_bytes(encoded(json.dumps(changed)))
            else:
                damaged = DAMAGES[data.draw(st.sampled_from(sorted(DAMAGES)))](target.read_bytes())
                target.unlink() if damaged is None else target.write_bytes(damaged)
            ends_well(["import", str(source), "--out", str(Path(folder) / "run")])

    attempt()


@pytest.mark.parametrize(
    "name",
    [
        "halved",
        "text",
        *(pytest.param(name, marks=pytest.mark.slow) for name in DAMAGES if name not in ("halved", "text")),
    ],
)
def test_a_ladder_with_a_damaged_file_is_read_or_refused(name, tmp_path):
    ladder = plant(tmp_path / "ladder", seeds=1)
    file = ladder / "ladder.jsonl"
    damaged = DAMAGES[name](file.read_bytes())
    file.unlink() if damaged is None else file.write_bytes(damaged)
    ends_well(["report", str(ladder), "--tables-only", "--bootstrap=2", "--json"])
