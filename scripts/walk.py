"""The files of src/danalab that a reader walks through from a cause to its effect, by execution.

    python scripts/walk.py            # all walks: number of files, and each with its functions that ran
    python scripts/walk.py post sft

lr       `danalab train --lr X` to the optimizer's step: files in which a function holds X, beside records of it
sft      a line of JSONL to the loss of fine-tuning: files that run, beside data and models, as in pre-training
ladder   a ladder's YAML with finished runs to its table: files of `ladder` that run
post     POST /v1/chat/completions to a token of the answer: files that run, beside those of tokenizers

Files that all rooms use (errors, files, lazy, plugins, registry) do not count.
Everything is tiny and done twice; the second time counts, when nothing is imported or cached for the first time.
"""

import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import danalab

SOURCE = Path(danalab.__file__).parent
COMMON = ("errors.py", "files.py", "lazy.py", "plugins.py", "registry.py")
GOALS = {"lr": 8, "sft": 6, "ladder": 14, "post": 12}
LR = 0.0123456789


@contextmanager
def traced(counts: Counter[tuple[str, str]], keep: Callable[[str, FrameType], bool]) -> Iterator[None]:
    """Count the calls of functions by (file, name), on all threads, where `keep` wants them."""
    prefix = str(SOURCE) + "/"

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(prefix) and code.co_name != "<module>":
            file = code.co_filename.removeprefix(prefix)
            if file not in COMMON and keep(file, frame):
                counts[file, code.co_qualname if sys.version_info >= (3, 11) else code.co_name] += event == "call"

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def walk_lr(folder: Path, counts: Counter[tuple[str, str]]) -> None:
    """Train three steps with a rate that nothing else has."""
    from danalab.cli.app import main

    words = f"train --data {_text(folder)} --arch enoki --heads 2 --seq-len 32 --batch-size 2"
    words += f" --iterations 3 --opt adamw --lr {LR} --no-tune-malloc --device cpu"

    def holds(file: str, frame: FrameType) -> bool:
        records = file.startswith(("train/callbacks/", "train/checkpoint/", "train/run/"))
        return not records and any(_is_rate(value) for value in frame.f_locals.values())

    for number in range(2):
        with traced(counts if number else Counter(), holds):
            code = main([*words.split(), "--run-dir", str(folder / f"run{number}")])
        assert code == 0


def _is_rate(value: Any) -> bool:
    if isinstance(value, dict):
        return any(type(each) is float and each == LR for each in value.values())
    return (type(value) is float and value == LR) or (isinstance(value, str) and value == str(LR))


def walk_sft(folder: Path, counts: Counter[tuple[str, str]]) -> None:
    """Conversations of a file as tokens, in rows, in a batch, and the loss of a model on it."""
    import torch

    from danalab.chat import ChatFormat
    from danalab.data.tokenizers import ByteTokenizer
    from danalab.post.dataset import ConversationDataset, tokenize
    from danalab.train.step.loss import CrossEntropy, TrainingBatch

    chat = ChatFormat(ByteTokenizer())
    model = _model()
    for number in range(2):
        file = folder / f"chats{number}.jsonl"
        file.write_text("".join(_line(f"{i} + {number}?", str(i + number)) for i in range(40)))
        with traced(counts if number else Counter(), lambda path, _: not path.startswith(("models/", "data/"))):
            parts = dict(zip(("train", "val"), tokenize([str(file)], chat).split(0.1, b"key"), strict=True))
            dataset = ConversationDataset([str(file)], parts, "train", chat, seq_len=64, masked=True)
            inputs, targets = dataset.batches(seed=1, global_batch=2, seq_len=64, rank=0, world_size=1)[0]
            loss, batch = CrossEntropy(0.0, 0.0, None), TrainingBatch(inputs, targets)
            with torch.no_grad():
                loss(model, batch, loss.denominators(batch))


def walk_post(folder: Path, counts: Counter[tuple[str, str]]) -> None:
    """A request to a server with a random model, without the socket."""
    from starlette.testclient import TestClient

    from danalab.chat import ChatFormat
    from danalab.data.tokenizers import ByteTokenizer
    from danalab.serve import ChatModel, ServerSettings, create_app, make_worker

    tokenizer, settings = ByteTokenizer(), ServerSettings()
    chat_model = ChatModel("tiny", _model().eval(), tokenizer, ChatFormat(tokenizer))
    question = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}
    own = Counter[tuple[str, str]]()
    with traced(own, lambda path, _: not path.startswith("data/tokenizers/")):  # before its threads begin
        app = create_app([(chat_model, make_worker(chat_model, settings))], settings)
        with TestClient(app, base_url="http://localhost") as client:
            for _ in range(2):
                own.clear()
                client.post("/v1/chat/completions", json=question).raise_for_status()
            counts.update(own)


def walk_ladder(folder: Path, counts: Counter[tuple[str, str]]) -> None:
    """Run a ladder of two sizes, and again when its runs are there."""
    from danalab.cli.app import main

    file = folder / "tiny.yaml"
    fixed = {"arch": "enoki", "seq_len": 32, "global_batch": 2, "batch_size": 2, "iterations": 3}
    fixed |= {"data": str(_text(folder)), "device": "cpu", "tune_malloc": False}
    file.write_text(json.dumps({"opts": ["adamw"], "heads": [2, 3], "fixed": fixed}))
    for number in range(2):
        with traced(counts if number else Counter(), lambda path, _: path.startswith("ladder/")):
            code = main(["ladder", str(file), "--out", str(folder / "ladder"), "--no-tune-lr", "--executor", "inline"])
        assert code == 0


def _model() -> Any:
    from danalab.models import ModelConfig, build_model

    sizes = {
        "d_model": 32,
        "n_layers": 1,
        "n_heads": 2,
        "head_dim": 16,
        "mlp_dim": 64,
        "vocab_size": 512,
        "seq_len": 64,
    }
    return build_model(ModelConfig(arch="qwen3", **sizes))


def _line(question: str, answer: str) -> str:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


def _text(folder: Path) -> Path:
    """Prepared text of some lines."""
    from danalab.data import prepare

    if not (folder / "text").is_dir():
        for split in ("train", "val"):
            (folder / split).mkdir(parents=True)
            lines = "".join(f"{i} of {split} comes before {i + 1}.\n" for i in range(900))
            (folder / split / "lines.txt").write_text(lines)
        prepare("text", "bytes", folder / "text", inputs=[folder / "train"], val_inputs=[folder / "val"])
    return folder / "text"


def main_() -> None:
    """Print the walks that are named, or all."""
    for name in sys.argv[1:] or GOALS:
        counts, output = Counter[tuple[str, str]](), io.StringIO()
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(output), redirect_stderr(output):
            try:
                globals()[f"walk_{name}"](Path(folder), counts)
            except AssertionError:
                sys.exit(output.getvalue())
        files: dict[str, list[str]] = {}
        for file, function in counts:
            files.setdefault(file, []).append(function)
        print(f"{name}: {len(files)} files (goal {GOALS[name]})")
        for file, functions in sorted(files.items()):
            print(f"    {file:44} {', '.join(functions)}"[:160])


if __name__ == "__main__":
    main_()
