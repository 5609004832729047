"""The whole pipeline, at a size of seconds."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from danalab.chat.tasks import make_task
from danalab.errors import UserError
from danalab.models import ModelConfig
from danalab.models.huggingface.convert import require_class
from danalab.post.settings import STAGES, MidFlags, RlFlags, SftFlags
from danalab.post.speedrun.pipeline import InterruptedRunError, Speedrun
from danalab.post.speedrun.report import as_json, scores_table, write_report
from danalab.post.speedrun.settings import PRESETS, Preset, SpeedrunConfig
from danalab.train import trainer as trainer_module
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.exchange import model_card
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.system.signals import StopRequest
from e2e.disturbed import rows

_QUICK = {"log_interval": 1, "ckpt_interval": 2}
TINY = Preset(
    source="none", tokenizer="bytes",
    opt="dana-muon",
    base={"arch": "qwen3", "d_model": 32, "n_layers": 1, "n_heads": 1, "seq_len": 96, "batch_size": 4, "iterations": 4,
          "eval_interval": 2, "eval_batches": 1, **_QUICK},
    mid={"data": ("arithmetic:max=9,size=60",), "replay_share": 0.3, "iterations": 4, **_QUICK},
    sft={"data": ("arithmetic:max=9,size=60",), "iterations": 4, **_QUICK},
    rl={"task": ("arithmetic:max=9",), "problems": 2, "samples": 2, "max_answer": 4, "iterations": 3,
        "eval_problems": 2, **_QUICK},
    tasks=("arithmetic:max=9,calculator=true", "identity"), problems=3, max_answer=4,
    minutes=dict.fromkeys(("data", "base", "mid", "sft", "rl", "scores"), 0.01),
)  # fmt: skip


def make(folder, text, **given) -> Speedrun:
    return Speedrun(SpeedrunConfig(out=folder, text=text, opt="adamw", device="cpu", **given), TINY)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(f"Text number {number} has the square {number**2}. " * 10)
    return (folder,)


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory):
    speedrun = make(tmp_path_factory.mktemp("runs") / "speed", text)
    speedrun.run()
    return speedrun


def test_every_stage_leaves_a_run_folder_and_scores(finished):
    for stage in STAGES:
        summary = RunFolder(finished.folder(stage)).read_summary()
        assert summary is not None
        assert summary["status"] == "finished"
        assert [task["task"] for task in finished.scores(stage)] == ["arithmetic", "identity"]
    headings, lines = scores_table(finished)
    assert headings == ["task", "base", "mid", "sft", "rl"]
    assert [line[0] for line in lines] == ["arithmetic", "identity"]
    found = json.loads(json.dumps(as_json(finished)))
    assert found["rl"]["scores"]["identity"]["count"] == 3


def test_the_report_has_scores_stages_samples_and_the_way_to_talk(finished):
    report = write_report(finished).read_text()
    for part in (
        "## Scores",
        "## Stages",
        "## Samples",
        f"danalab serve --run {finished.folder('rl')}",
    ):
        assert part in report


def test_the_same_command_again_changes_nothing(finished):
    before = {file: file.stat().st_mtime_ns for file in finished.out.rglob("*.json*")}
    finished.run()
    assert {file: file.stat().st_mtime_ns for file in finished.out.rglob("*.json*")} == before


def test_the_folder_of_another_speedrun_is_refused(finished, text, tmp_path):
    with pytest.raises(UserError, match="is the folder of another speedrun: --seed 1 here, 0 there"):
        make(finished.out, text, seed=1).run()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="has files but is no speedrun's folder"):
        make(tmp_path, text).run()


def test_a_missing_or_short_text_or_bad_chats_are_named_before_anything_is_made(tmp_path):
    (tmp_path / "short.txt").write_text("Too short. " * 90)
    refusals = {
        "nosuch": "nosuch: no such file or folder",
        "short.txt": "has 990 bytes; .* needs at least 11,520",
    }
    for name, words in refusals.items():
        with pytest.raises(UserError, match=f"--text .*{words}"):
            make(tmp_path / "speed", (tmp_path / name,)).run()
        assert not (tmp_path / "speed").exists()
    (tmp_path / "bad.jsonl").write_text('{"messages": []}\nno object\n')
    with pytest.raises(UserError, match=r"bad\.jsonl"):
        make(tmp_path / "speed", (), chats=(str(tmp_path / "bad.jsonl"),)).run()
    assert not (tmp_path / "speed").exists()


def test_a_stop_signal_ends_with_its_code_and_the_next_command_continues(finished, text, tmp_path):
    stop = StopRequest()
    stop.signal = signal.SIGTERM
    speedrun = make(tmp_path / "speed", text)
    with pytest.raises(InterruptedRunError) as caught:
        speedrun.run(stop)
    assert caught.value.code == 85
    assert not speedrun.folder("base").exists()


def test_a_copied_folder_continues_and_its_original_may_be_gone(finished, text, tmp_path, monkeypatch):
    shutil.copytree(finished.out, tmp_path / "copy")
    for left in ("scores/sft.json", "rl", "scores/rl.json"):
        path = tmp_path / "copy" / left
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    monkeypatch.chdir(tmp_path)
    copy = make(Path("copy"), text)
    copy.run()
    for stage in STAGES:
        assert rows(RunFolder(copy.folder(stage))) == rows(RunFolder(finished.folder(stage)))
        assert copy.scores(stage) == finished.scores(stage)


def test_a_signal_during_scores_ends_at_once(finished, text, tmp_path, monkeypatch):
    """The score of a stage reads no flag; it is made again by the next command."""
    shutil.copytree(finished.out, tmp_path / "speed")
    (tmp_path / "speed" / "scores" / "rl.json").unlink()

    def scoring(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        raise AssertionError("the signal was not seen")

    monkeypatch.setattr("danalab.post.speedrun.pipeline.evaluate_chat", scoring)
    with pytest.raises(InterruptedRunError) as caught:
        make(tmp_path / "speed", text).run()
    assert caught.value.code == 85
    assert not (tmp_path / "speed" / "scores" / "rl.json").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [("speedrun.json", "[]"), ("speedrun.json", "3"), ("scores/sft.json", "null")],
)
def test_a_damaged_file_of_the_folder_is_named(finished, text, tmp_path, file, content):
    for each in ("speedrun.json", "scores/base.json", "scores/sft.json"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        shutil.copyfile(finished.out / each, tmp_path / each)
    (tmp_path / file).write_text(content)
    speedrun = make(tmp_path, text)
    with pytest.raises(UserError, match=file):
        speedrun.open() if file == "speedrun.json" else speedrun.scores("sft")


@pytest.mark.slow
def test_a_speedrun_that_is_killed_in_every_stage_gives_the_same_rows_and_scores(finished, text, tmp_path):
    speedrun = make(tmp_path / "speed", text)
    deaths = 0
    for stage, step in (("base", 1), ("base", 3), ("mid", 2), ("sft", 3), ("rl", 2), ("", 0)):
        child = os.fork()
        if child == 0:
            _kill_at(stage, step)
            speedrun.run()
            os._exit(0)
        deaths += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert deaths == 5
    for stage in STAGES:
        assert rows(RunFolder(speedrun.folder(stage))) == rows(RunFolder(finished.folder(stage)))
        assert speedrun.scores(stage) == finished.scores(stage)


def _kill_at(stage: str, step: int) -> None:
    build = trainer_module.Trainer

    def building(spec, *args, **kwargs):
        trainer = build(spec, *args, **kwargs)
        make_step = trainer._make_step

        def making(*step_args):
            if spec.run_dir.name == stage and trainer.step == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return make_step(*step_args)

        trainer._make_step = making
        return trainer

    trainer_module.Trainer = building


@pytest.mark.parametrize("name", PRESETS)
def test_the_settings_of_each_preset_are_valid(name, tmp_path):
    preset = PRESETS[name]
    assert TrainConfig(**preset.base).seq_len
    assert MidFlags(run=tmp_path, replay="x", **preset.mid).data
    assert SftFlags(run=tmp_path, **preset.sft).data
    assert RlFlags(run=tmp_path, **preset.rl).task
    for word in {*preset.tasks, *preset.mid["data"], *preset.sft["data"], *preset.rl["task"]}:
        if word.partition(":")[0] in ("arithmetic", "identity", "dialogue", "spelling", "counting"):
            assert make_task(word)[0][0].question
    for stage in (preset.mid, preset.sft):
        assert any(word.startswith("dialogue") for word in stage["data"])
        assert name == "cpu-tiny" or any(word.startswith("smoltalk") for word in stage["data"])
    assert preset.minutes.keys() == {"data", "scores", *STAGES}


@pytest.mark.parametrize("name", PRESETS)
def test_the_models_of_each_preset_can_be_exported_for_every_program(name):
    base = PRESETS[name].base
    assert (base["arch"], base["attention_gate"]) == ("qwen3", False)
    sizes = (32, 1, 1, 32, 64, 64, 64)
    assert not require_class(ModelConfig("qwen3", *sizes, attention_gate=base["attention_gate"]))


def test_the_card_of_a_chat_says_what_the_calculator_needs(finished):
    card = model_card(open_run(finished.folder("sft")), 1, "Qwen3ForCausalLM", True)
    assert "<|python_end|>" in card
    assert "<|python_end|>" not in model_card(open_run(finished.folder("base")), 1, "Qwen3ForCausalLM", True)


def test_the_preset_names_the_optimizer_unless_the_user_does(finished):
    preset = Speedrun(replace(finished.config, opt=None), TINY)
    assert {preset.configuration(stage).opt for stage in STAGES} == {"dana-muon"}
    assert {finished.configuration(stage).opt for stage in STAGES} == {"adamw"}


def test_the_presets_rate_is_of_its_optimizer_alone(tmp_path):
    def base(opt):
        config = Speedrun(SpeedrunConfig(out=tmp_path, opt=opt)).configuration("base")
        return config.lr_multiplier, config.optimizer_settings

    assert base(None) == base("dana-muon") == (0.72, {"aux_lr_factor": 1.0, "normalise": None})
    assert base("adana") == (1.0, {})
