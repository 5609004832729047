"""How data classes become flags, and what bad flags answer."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

import danalab
from danalab.cli.app import COMMANDS, commands_of, main
from danalab.errors import UserError
from danalab.experiments.cells import parse_fixed
from danalab.train.config.flags import as_yaml, field_types, leaf_types, parse, validated

FLAG_TYPES = {
    f"{verb} {name}".rstrip(): flags for verb in COMMANDS for name, (flags, _) in commands_of(verb).items()
}


@dataclass(frozen=True)
class Flags:
    batch_size: int = 8
    lr: float | None = None
    compile: bool | None = None
    shuffle: bool = True
    kind: Literal["a", "b"] | None = None
    layers: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()
    name: str = ""
    file: Path | None = None


def flags(*arguments: str) -> Flags:
    return parse(Flags, list(arguments), "x")


def test_all_unknown_flags_are_named_at_once():
    with pytest.raises(
        UserError, match=r"unknown flags --bach-size .did you mean --batch-size.., --foo; see x"
    ):
        flags("--bach-size", "3", "--lr", "1", "--foo=2")


def test_negative_numbers_and_repeated_lists_are_values():
    assert flags("--lr", "-1e-3").lr == -1e-3
    assert flags("--steps", "a", "b", "--steps=c").steps == ("a", "b", "c")


def test_flags_may_stand_between_positional_arguments(capsys):
    assert main(["compare", "absent-a", "--json", "absent-b"]) == 2
    assert "absent-a" in capsys.readouterr().err


def test_underscores_and_hyphens_are_the_same():
    assert flags("--batch_size", "3") == flags("--batch-size", "3") == Flags(batch_size=3)


def test_the_words_of_the_long_context_trainer_are_known():
    from danalab.train.config.train_config import TrainConfig

    words = "--data-path d --output-dir o --max-seq-len 64 --gradient-accumulation 2 --model-dim=32"
    words += " --num-layers 3 --no-amp"
    config = parse(TrainConfig, words.split(), "x")
    said = config.data, str(config.run_dir), config.seq_len, config.acc_steps, config.d_model, config.n_layers
    assert (*said, config.dtype) == ("d", "o", 64, 2, 32, 3, "float32")


def test_the_words_of_other_trainers_are_known_and_suggested():
    from danalab.train.config.train_config import TrainConfig

    words = "--optimizer adamw --learning_rate 1e-3 --max_iters 9"
    words += " --block-size 32 --device-batch-size 4 --grad-accum-steps 2"
    config = parse(TrainConfig, words.split(), "x")
    assert (config.opt, config.lr, config.iterations) == ("adamw", 1e-3, 9)
    assert (config.seq_len, config.batch_size, config.acc_steps) == (32, 4, 2)
    with pytest.raises(UserError, match=r"--blocksize .did you mean --block-size"):
        parse(TrainConfig, ["--blocksize", "3"], "x")


def test_the_words_of_the_original_training_code_are_known(monkeypatch, capsys):
    from danalab.train.config.train_config import TrainConfig

    words = (
        "--model llama --n_embd 64 --n_layer 2 --n_head=2 --mlp_hidden_dim 96 --sequence_length 32 --dataset fineweb "
        "--init_scheme KarpathyGPT2 --gamma_3_factor 0.5 --wd_ts_const 7 --wsd_final_lr_scale 0.1 "
        "--wsd_fract_decay 0.2 --z_loss_coeff 0 --latest_ckpt_interval 5 --permanent_ckpt_interval 10"
    )
    assert parse(TrainConfig, words.split(), "x") == TrainConfig(
        arch="llama", d_model=64, n_layers=2, n_heads=2, mlp_dim=96, seq_len=32, data="fineweb", init="KarpathyGPT2",
        gamma3=0.5, wd_ts=7, final_lr_scale=0.1, fract_decay=0.2, z_loss=0, ckpt_interval=5, keep_every=10,
    )  # fmt: skip
    monkeypatch.setenv("RESULTS_BASE_FOLDER", "runs")
    words = ["--experiment_name", "one", "--run_prefix=two", "--config_format", "base"]
    assert parse(TrainConfig, words, "x").name == "two-one"
    assert "--config_format is ignored" in capsys.readouterr().err
    assert parse(TrainConfig, ["--run_prefix", "two"], "x").name is None
    assert os.environ["RESULTS_BASE_FOLDER"] == "runs/two"
    assert main(["generate", "--model", "x"]) == 2  # a verb that lacks ours too refuses what was typed
    assert "unknown flag --model" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["False", "false"])
def test_a_boolean_followed_by_false_is_false(word):
    assert flags("--shuffle", word).shuffle is False
    assert flags("--compile", word).compile is False


def test_booleans_stay_plain_switches():
    assert flags("--no-shuffle").shuffle is False
    assert flags("--compile").compile is True
    assert flags("--compile", "True").compile is True
    assert flags().compile is None


def test_a_flag_may_be_called_like_a_keyword(capsys):
    assert main(["data", "fetch-gpt2", "--from", "absent-folder"]) == 2
    assert "absent-folder" in capsys.readouterr().err
    assert main(["data", "fetch-gpt2", "--form", "absent-folder"]) == 2
    assert "did you mean --from" in capsys.readouterr().err


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("batch-size: 5\nlr: 1e-3\n")
    assert flags("--config", str(file)) == Flags(batch_size=5, lr=1e-3)
    assert flags("--config", str(file), "--batch-size", "6").batch_size == 6


def test_printed_configuration_is_read_back(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(as_yaml(flags("--lr", "0.1"), {}))
    assert flags("--config", str(file)) == Flags(lr=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bach-size", "3"], "unknown flag --bach-size .did you mean --batch-size"),
        (["--batch-size", "many"], "--batch-size"),
        (["--batch-size"], "--batch-size"),
        (["--shuffle=perhaps"], "--shuffle.*: ignored explicit argument"),
        (["--config"], "needs a value"),
        (["--config", "absent.yaml"], "absent.yaml: No such file"),
    ],
)
def test_bad_flags_are_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        flags(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bach_size: 3", "unknown key 'bach_size' .did you mean 'batch_size'"),
        ("batch_size: many", "batch_size: 'many': must be a valid integer"),
        ("- 3", "a mapping of names to values is expected"),
        ("a: [", "not valid YAML"),
        ("file: 2024", "file: 2024: "),
        ("kind: c", "kind: 'c': must be 'a' or 'b'"),
        ("layers: [1, x]", "layers: 'x': must be a valid integer"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path, text, message):
    file = tmp_path / ("a deep folder" * 10) / "run.yaml"  # the message has the whole path
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        flags("--config", str(file))


def test_lists_of_a_file_are_read_as_what_they_hold(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("layers: [1, 2]\nsteps: [3, 4=name]\nkind: b")
    assert flags("--config", str(file)) == Flags(layers=(1, 2), steps=("3", "4=name"), kind="b")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        flags("--config", str(file))


def test_bad_input_ends_with_exit_code_2_and_one_line(capsys):
    assert main(["plan", "--heads", "1"]) == 2
    error = capsys.readouterr().err
    assert error == "danalab: error: --heads 1 gives enoki no layer; take more heads\n"


def test_a_full_disk_is_one_line(monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("danalab.cli.app._dispatch", full)
    assert main(["plan"]) == 2
    line = "danalab: error: standard output, or a file that was open, could not be written: No space left on device\n"
    assert capsys.readouterr().err == line


@pytest.mark.slow
def test_a_file_beyond_a_limit_is_named(tmp_path):
    """The system names no file that is open."""
    (tmp_path / "text.txt").write_text("some words in a line\n" * 4000)
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))"
    program = f"{limit}; from danalab.cli.app import main; sys.exit(main(sys.argv[1:]))"
    words = ["theory", "schedules", "--out", str(tmp_path)]
    found = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (
        2,
        f"danalab: error: {tmp_path / 'schedules.png'}: File too large\n",
    )


@pytest.mark.slow
def test_a_reader_that_stops_early_is_no_error():
    command = f"{shlex.quote(sys.executable)} -m danalab optim list --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_debug_shows_the_traceback():
    with pytest.raises(UserError):
        main(["plan", "--heads", "1", "--debug"])


def test_of_several_ranks_the_first_names_a_bad_flag(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "--hads", "3"]) == 2
    assert capsys.readouterr().err == ""


def test_every_path_of_every_verb_is_expanded_and_every_other_text_stays(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    expanded = 0
    for verb, flags_type in FLAG_TYPES.items():
        helps = {field.name: field.metadata.get("help", "") for field in fields(flags_type)}
        for name, hint in field_types(flags_type).items():
            if not leaf_types(hint) & {str, Path} or "Literal" in str(hint):
                continue
            value = ["~/x"] if "tuple[" in str(hint) else "~/x"
            got = str(validated(flags_type, {name: value})[name])
            is_path = Path in leaf_types(hint) or bool(
                re.search(r"FILE\b|\b[Pp]aths? of", helps.get(name, ""))
            )
            assert ("/home/me/x" in got) or ("~/x" in got and not is_path), (verb, name, got)
            expanded += "/home/me/x" in got
    assert expanded > 100
    with pytest.raises(UserError, match=r"^/home/me/absent\.yaml"):
        flags("--config", "~/absent.yaml")
    assert parse_fixed(["data=~/a:0.5,~/b:0.5"]) == {"data": "/home/me/a:0.5,/home/me/b:0.5"}


def test_no_module_reads_yaml_or_expands_paths_by_itself():
    source = Path(danalab.__file__).parent
    own = [
        file.name
        for file in source.rglob("*.py")
        if re.search(r"^\s*import yaml|expanduser", file.read_text("utf-8"), re.M)
    ]
    assert own == ["files.py"]


def test_an_unknown_verb_offers_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert "did you mean 'train'" in capsys.readouterr().err


def test_plan_prints_one_json_object_for_programs(capsys):
    assert main(["plan", "--arch", "enoki", "--opt", "adana", "--heads", "3", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert (run["steps"], run["warmup"], run["total_params"]) == (6165, 123, 20201472)


def test_plan_of_several_devices_gives_wall_hours_and_device_hours(capsys):
    words = [
        "plan",
        "--heads",
        "12",
        "--nproc",
        "8",
        "--gpu",
        "a100",
        "--mfu",
        "0.5",
    ]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["gpu_hours"].keys() == {"A100"}
    assert told["wall_hours"]["A100"] == pytest.approx(told["gpu_hours"]["A100"] / 8)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "on 8 devices" in out
    assert main([*words, "--mfu", "0"]) == 2


def test_hours_of_a_plan_count_the_optimizers_own_products(capsys):
    assert main(["plan", "--heads", "12", "--opt", "muon", "--gpu", "h100", "--mfu", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    whole = told["flops"] + told["optimizer_flops"]
    assert told["gpu_hours"]["H100"] == pytest.approx(whole / (0.5 * 989.4e12) / 3600)


def test_plan_takes_explicit_dimensions(capsys):
    arguments = ["plan", "--d-model", "128", "--n-layers", "2", "--n-heads", "2", "--vocab-size", "4096"]
    assert main(arguments) == 0
    assert "2 heads of 64, 2 layers, d_model 128, mlp 512" in capsys.readouterr().out
    assert main([*arguments[:-4], "--n-heads", "3"]) == 2
    assert "does not divide" in capsys.readouterr().err


def test_plan_takes_the_weight_decay_that_a_run_would_take(capsys):
    assert main(["plan", "--heads", "3", "--weight-decay", "100", "--wd-ts", "1"]) == 2
    assert "take 50 of each weight in the first step" in capsys.readouterr().err
    assert main(["plan", "--heads", "3", "--iterations", "20"]) == 0
    assert "times the schedule; at most 2 times the learning rate" in capsys.readouterr().out
    assert main(["plan", "--heads", "3", "--iterations", "20", "--opt", "dana-muon"]) == 0
    assert "times the learning rate; of all but matrices it falls" in capsys.readouterr().out


@pytest.mark.sample(3)  # those of all at once are in test_help.py
@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_has_help(verb, capsys):
    try:
        code = main([verb, "--help"])
    except SystemExit as stop:
        code = stop.code or 0
    assert code == 0
    assert verb in capsys.readouterr().out
