"""`danalab speedrun`: from text to a chat; steps in order, each repeated without effect where it has been done.

out/speedrun.json      settings, compared when it continues
out/datasets/          corpus and tokenizer
out/base mid sft rl/   ordinary run folders
out/scores/            answers to the test problems after each stage
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from danalab.chat.answers import AnswerSettings
from danalab.chat.task_scores import evaluate_chat
from danalab.data import prepare
from danalab.data.sources import TextSource
from danalab.errors import UserError
from danalab.files import read_json, validated, write_json
from danalab.post.dataset import conversations_of
from danalab.post.rl import configure as configure_rl
from danalab.post.settings import STAGES, MidConfig, MidFlags, RlFlags, SftConfig, SftFlags
from danalab.post.sft import configure
from danalab.post.speedrun.settings import PRESETS, Preset, SpeedrunConfig
from danalab.train.config.flags import flag, names_of
from danalab.train.config.train_config import TrainConfig
from danalab.train.run.open import open_run
from danalab.train.system.signals import NONFINITE, StopRequest
from danalab.train.trainer import run_training

log = logging.getLogger(__name__)


class InterruptedRunError(Exception):
    """A stop signal, or a loss that is not finite; `code` is the exit code. The same command continues."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


Step = tuple[str, float, Callable[[], None]]
"""(name, expected minutes, to share the time among the steps, what it does)."""


class Speedrun:
    """A speedrun in its folder, with `preset` in place of the one that the configuration names."""

    def __init__(self, config: SpeedrunConfig, preset: Preset | None = None):
        self.config, self.preset = config, preset or PRESETS[config.preset]
        self.out = config.out

    def run(self, stop: StopRequest | None = None) -> None:
        """Make all steps that are left.

        UserError: another speedrun's folder, or bad data; InterruptedRunError ends the caller.
        """
        stop = StopRequest() if stop is None else stop
        self.open()
        steps, spent, expected = self.steps(stop), 0.0, 0.0
        with stop:
            for number, (name, planned, make) in enumerate(steps):
                if stop:
                    raise InterruptedRunError(stop.exit_code)
                left = sum(each[1] for each in steps[number:]) * (spent / expected if expected else 1.0)
                log.info("[%d/%d] %s; about %.1f min left", number + 1, len(steps), name, left)
                start = time.perf_counter()
                make()
                minutes = (time.perf_counter() - start) / 60
                if minutes > 0.1 * planned:  # otherwise it was done before
                    spent, expected = spent + minutes, expected + planned

    def open(self) -> None:
        """Make the folder; UserError: other files or another speedrun's are there, or the text is missing or short."""
        file = self.out / "speedrun.json"
        names = names_of(SpeedrunConfig, "run")
        ours = {name: value for name, value in self.config.as_dict().items() if name in names}
        if not file.is_file():
            if missing := [text for text in self.config.text if not text.exists()]:
                raise UserError(f"--text {missing[0]}: no such file or folder")
            for (
                word
            ) in self.config.chats:  # read now: they are needed after the base model, perhaps hours later
                if not list(conversations_of(word)):
                    raise UserError(f"--chats {word}: no conversation in it")
            least = 120 * self.preset.base["seq_len"]  # a tenth of which is some sequences to validate on
            size = TextSource(self.config.text).size_bytes() if self.config.text else None
            if size is not None and size < least:
                raise UserError(
                    f"--text has {size:,} bytes; the preset {self.config.preset} needs at least {least:,}"
                )
            if self.out.is_dir() and any(self.out.iterdir()):
                raise UserError(f"--out {self.out}: has files but is no speedrun's folder; name a new one")
            self.out.mkdir(parents=True, exist_ok=True)
            write_json(file, ours)
            return
        theirs = validated(dict[str, Any], read_json(file), file)
        for name, value in ours.items():
            if theirs.get(name) != value:
                raise UserError(
                    f"--out {self.out} is the folder of another speedrun: {flag(name)} {value} here, "
                    f"{theirs.get(name)} there; take another --out"
                )

    def steps(self, stop: StopRequest) -> list[Step]:
        """All steps in order; training stops at a checkpoint, anything else at once: it is repeated or continues."""

        def at_once(step: Callable[..., Any], *arguments: str) -> None:
            try:
                with stop.interrupting():
                    step(*arguments)
            except KeyboardInterrupt:
                raise InterruptedRunError(stop.exit_code) from None

        preset, minutes = self.preset, self.preset.minutes
        source, settings = preset.source, preset.source_settings
        if self.config.text:
            source, settings = "text", {"inputs": self.config.text}
        prepared = partial(prepare, source, preset.tokenizer, self.data, **settings)
        made: list[Step] = [("data and tokenizer", minutes["data"], partial(at_once, prepared))]
        for stage in STAGES:
            made.append((f"{stage}: training", minutes[stage], partial(self._train, stage, stop)))
            made.append((f"{stage}: scores", minutes["scores"], partial(at_once, self._score, stage)))
        return made

    # ---- folders and results ----

    def folder(self, stage: str) -> Path:
        """The run folder of a stage."""
        return self.out / stage

    def scores(self, stage: str) -> list[dict[str, Any]]:
        """The scores of a stage: task, score and examples of each. Raises UserError: it has not been scored."""
        file = self._scores_file(stage)
        return validated(dict[str, Any], read_json(file), file)["tasks"]

    def _scores_file(self, stage: str) -> Path:
        return self.out / "scores" / f"{stage}.json"

    # ---- steps ----

    @property
    def data(self) -> Path:
        """The prepared corpus."""
        return self.out / "datasets" / ("text" if self.config.text else self.preset.source)

    def _train(self, stage: str, stop: StopRequest) -> None:
        outcome = run_training(self.configuration(stage), stop)
        if outcome.status != "finished":
            raise InterruptedRunError(NONFINITE if outcome.status == "nonfinite" else outcome.exit_code)

    def configuration(self, stage: str) -> TrainConfig:
        """The configuration of a stage; those before it are finished."""
        config, opt = self.config, self.config.opt or self.preset.opt
        everywhere: dict[str, Any] = {
            "run_dir": self.folder(stage),
            "seed": config.seed,
            "data_seed": 1337 + config.seed,
            "nproc": config.nproc,
            "device": config.device,
        }
        if stage == "base":
            own: dict[str, Any] = {}
            if opt == self.preset.opt:
                settings = dict(self.preset.optimizer_settings)
                own = {"lr_multiplier": self.preset.lr_multiplier, "optimizer_settings": settings}
            return TrainConfig(**self.preset.base, **everywhere, data=str(self.data), opt=opt, **own)
        everywhere["run"] = self.folder(STAGES[STAGES.index(stage) - 1])
        if stage == "rl":
            everywhere |= {"opt": opt, "trust_model_code": config.trust_model_code}
            return configure_rl(RlFlags(**self.preset.rl, **everywhere))
        preset = self.preset.mid if stage == "mid" else self.preset.sft
        everywhere |= {**preset, "data": (*preset["data"], *config.chats)}
        if stage == "mid":
            return configure(MidFlags(**everywhere, opt=opt, replay=str(self.data)), MidConfig)
        return configure(SftFlags(**everywhere, opt=opt), SftConfig)

    def _score(self, stage: str) -> None:
        file = self._scores_file(stage)
        if file.is_file():
            return
        settings = AnswerSettings(
            limit=self.preset.problems, max_tokens=self.preset.max_answer, seed=self.config.seed
        )
        evaluation = evaluate_chat(
            self.folder(stage),
            self.preset.tasks,
            settings,
            device=self.config.device,
            trusts_model_code=self.config.trust_model_code,
            report=lambda result: log.info("%s: %s %s", stage, result.task, result.score),
        )
        file.parent.mkdir(exist_ok=True)
        rows = [asdict(task) for task in evaluation.tasks]
        write_json(file, {"step": evaluation.step, "tasks": rows})


def stage_facts(folder: Path) -> dict[str, Any]:
    """The facts of a finished stage for a report: optimizer, rate, steps, tokens, FLOPs, seconds, losses."""
    run = open_run(folder)
    summary, config = run.summary or {}, run.config["config"]
    return {
        "opt": config["opt"],
        "lr": config["lr"],
        "steps": summary.get("step"),
        **{name: summary.get(name) for name in ("tokens", "flops", "time", "params", "val/loss", "val/bpb")},
    }
