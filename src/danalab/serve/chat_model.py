"""Opening a model to talk to; its card, which the page shows beside its answers; a conversation without a server.

A model's folder is read at once: later changes, or its removal, do not matter. Nothing of the card (stage,
size, optimizer, a small curve, questions to begin with) is needed to answer: a folder that lacks a part gives a shorter
one.
"""

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danalab.chat.conversations import Conversation, Message
from danalab.chat.formats import format_of
from danalab.chat.tasks import TASKS, TEST, make_task
from danalab.chat.tasks.base import parse_specification
from danalab.chat.tasks.generated import GeneratedTask
from danalab.colors import optimizer_color
from danalab.errors import UserError
from danalab.files import read_json
from danalab.models.decoder import Decoder
from danalab.serve.planner import Answer, ChatModel, ChatQuestion, Delta, Planner, force_result
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_sound_rows

if TYPE_CHECKING:
    from danalab.inference import Engine, SamplingParameters, TextGenerator


def open_chat_model(
    run: Path | None = None,
    huggingface: Path | None = None,
    *,
    step: int | None = None,
    tokenizer: str | None = None,
    name: str | None = None,
) -> ChatModel:
    """The model of one run folder, or of one folder in Hugging Face format; UserError: not one, or unreadable."""
    generator = open_text_generator(run, huggingface, step, tokenizer)
    folder = run or huggingface
    assert folder is not None
    chosen = format_of(folder, generator.tokenizer)
    name = name or folder.resolve().name
    card = run_card(folder, generator.model, generator.step)
    return ChatModel(name, generator.model, generator.tokenizer, chosen, generator.step, card=card)


def open_text_generator(
    run: Path | None,
    huggingface: Path | None,
    step: int | None = None,
    tokenizer: str | None = None,
    device: str = "cpu",
    **engine: Any,
) -> "TextGenerator":
    """The same for plain text. `engine`: settings of `danalab.inference.Engine`."""
    from danalab.train.run.exchange import open_generator, open_huggingface_generator

    if (run is None) == (huggingface is None):
        raise UserError("give either --run (a run folder) or --from (a folder in Hugging Face format)")
    if run is not None:
        return open_generator(run, step, tokenizer, device, **engine)
    assert huggingface is not None
    if step is not None:
        raise UserError(f"--step {step}: --from has one model and no checkpoints; leave it out")
    return open_huggingface_generator(huggingface, tokenizer, device, **engine)


class ChatSession:
    """The turns of one conversation, the oldest left out when the context is full; `engine` is the model's."""

    def __init__(self, chat_model: ChatModel, engine: "Engine", sampling: "SamplingParameters", system: str = ""):
        self.chat_model, self.engine, self.sampling, self.system = chat_model, engine, sampling, system
        self.turns: list[Message] = []

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()

    @property
    def conversation(self) -> Conversation:
        """Instructions and turns; UserError: nothing has been said."""
        return self._with(self.turns)

    def load(self, conversation: Conversation) -> bool:
        """Go on with another conversation; returns whether a question at its end, which has no answer, is left out."""
        messages = list(conversation.messages)
        self.system = messages.pop(0).text if messages[0].role == "system" else ""
        self.turns = messages[: -1 if messages[-1].role == "user" else None]
        return len(self.turns) < len(messages)

    def retry(self) -> Generator[Delta, None, None]:
        """Another answer to the last question (UserError: there is none). An empty one does not replace the old."""
        if len(self.turns) < 2:
            raise UserError("there is no question to answer again")
        question, before = self.turns[-2].text, self.turns
        self.turns = before[:-2]
        try:
            yield from self.ask(question)
        finally:
            if len(self.turns) < len(before):
                self.turns = before

    def ask(self, question: str) -> Generator[Delta, None, None]:
        """The answer, in pieces; if closed early, it is remembered. UserError: an empty or long question, or busy."""
        if self.engine.busy:
            raise UserError("an answer is being written: read it to its end, or close it, before the next question")
        conversation = self._with([*self.turns, Message.of("user", question)])
        asked = ChatQuestion(conversation, self.sampling, drops_old_turns=True)
        ((request, reader),) = Planner(self.chat_model, max_choices=1).chat(asked, scope="").pairs
        number = self.engine.submit(request)
        answer = Answer()
        try:
            while answer.finish_reason is None:
                for event in self.engine.step():
                    delta = force_result(self.engine, number, reader.read(event))
                    answer.add(delta)
                    yield delta
        finally:
            self.engine.cancel(number)
            if answer.text.strip() or answer.calculations:
                self.turns += [Message.of("user", question), answer.message]

    def _with(self, turns: list[Message]) -> Conversation:
        system = [Message.of("system", self.system)] if self.system.strip() else []
        return Conversation((*system, *turns))


POINTS = 80  # of a curve, at most
MIN_POINTS = 10  # of a metric that is preferred to one with more
EXAMPLES = 4
STAGES = {"pretraining": "base", "mid": "mid", "sft": "sft", "rl": "rl"}
CURVES = {"rl": ("rl/reward", "train/loss")}  # metrics of a stage's curve, best first; of other stages the losses


def run_card(folder: Path, model: Decoder, step: int | None) -> dict[str, Any]:
    """The card of a run folder, up to `step`, or of a folder in Hugging Face format."""
    card: dict[str, Any] = {
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "arch": model.config.arch,
        "layers": model.config.n_layers,
        "width": model.config.d_model,
    }
    record = _record(folder)
    if record is None:
        return card
    config, stage = record.get("config", {}), STAGES.get(record.get("stage", ""), "base")
    rows, _ = read_sound_rows(RunFolder(folder).metrics_file)
    opt = str(config.get("opt"))
    card |= {
        "stage": stage,
        "optimizer": opt,
        "color": optimizer_color(opt),
        "lr": config.get("lr"),
        "steps": config.get("iterations"),
        "curve": _curve(rows, CURVES.get(stage, ("val/loss", "train/loss")), step),
        "examples": _examples(folder),
    }
    return card


def _record(folder: Path) -> dict[str, Any] | None:
    try:
        return RunFolder(folder).read_config()
    except UserError:
        return None


def _curve(rows: Sequence[dict[str, Any]], metrics: Sequence[str], step: int | None) -> dict[str, Any] | None:
    """The first of `metrics` that makes a curve, or that with the most points; None without two."""
    curves = {
        metric: [
            (row["step"], row[metric])
            for row in rows
            if isinstance(row.get(metric), (int, float)) and math.isfinite(row[metric])
            if step is None or row["step"] <= step
        ]
        for metric in metrics
    }
    metric = max(metrics, key=lambda name: min(len(curves[name]), MIN_POINTS))  # the first of equals
    points = curves[metric]
    if len(points) < 2:
        return None
    kept = sorted({round(i * (len(points) - 1) / (POINTS - 1)) for i in range(POINTS)})
    return {"metric": metric, "points": [points[i] for i in kept]}


def _examples(folder: Path) -> list[str]:
    """Test questions of the generated tasks of this stage and of those before it, of each task in turn."""
    tasks: dict[str, Iterator[str]] = {}
    for record in _stages(folder):
        for text in str(record["config"].get("data", "")).split("\n"):
            try:
                name = TASKS.canonical(parse_specification(text)[0])
                if name not in tasks and issubclass(TASKS.get(name), GeneratedTask):
                    problems = make_task(text, split=TEST)[0]
                    tasks[name] = iter(dict.fromkeys(problem.question for problem in problems[:EXAMPLES]))
            except UserError:  # a file, or a task of another version
                continue
    mixed = itertools.chain.from_iterable(itertools.zip_longest(*tasks.values()))
    return [question for question in mixed if question is not None][:EXAMPLES]


def _stages(folder: Path) -> Iterator[dict[str, Any]]:
    """The records of a run and of the runs that it started from."""
    for _ in STAGES:
        record = _record(folder)
        if record is None:
            return
        yield record
        try:
            folder = folder / str(read_json(folder / "start.json").get("run"))
        except (UserError, AttributeError):
            return
