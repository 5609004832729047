"""Count the files that a value passes: --lr to the optimizer's step, a YAML file to a built model.

A file counts if a function of it has the value in a variable, alone or in a dict or list, or is on the last call stack.
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from danalab.cli import app

SOURCE = str(Path(app.__file__).parents[1])
MODEL = "--d-model 16 --n-layers 1 --n-heads 1 --seq-len 16 --batch-size 2 --iterations 1 --eval-batches 1"


def holds(thing: Any, value: float) -> bool:
    """Whether a variable is the value, as number or text, or a dict or list with it."""
    if isinstance(thing, (dict, list, tuple)):
        return any(holds(part, value) for part in (thing.values() if isinstance(thing, dict) else thing))
    return isinstance(thing, int | float | str) and str(thing).rpartition("=")[2] == str(value)


def walk(words: list[str], value: float, room: str, last: str) -> list[str]:
    """The files in the order in which the value comes to them, until the function `last` of the `room` is called."""
    files: dict[str, None] = {}

    def look(frame: FrameType | None, event: str, _: object) -> None:
        assert frame is not None
        name = frame.f_code.co_filename
        if event not in ("call", "return") or not name.startswith(SOURCE):
            return
        if name not in files and any(holds(each, value) for each in [*frame.f_locals.values()]):
            files[name] = None
        if event == "call" and frame.f_code.co_name == last and name.startswith(f"{SOURCE}/{room}/"):
            sys.setprofile(None)
            while frame is not None:
                if frame.f_code.co_filename.startswith(SOURCE):
                    files[frame.f_code.co_filename] = None
                frame = frame.f_back

    with contextlib.redirect_stderr(io.StringIO()):
        sys.setprofile(look)
        code = app.main(words)
        sys.setprofile(None)
    return [name.removeprefix(f"{SOURCE}/") for name in files] if code == 0 else [f"exit code {code}"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text("the cat sat on the mat\n" * 3000)
        Path(folder, "run.yaml").write_text("mlp_dim: 52\n")
        train = ["train", *MODEL.split(), "--data", f"{folder}/text.txt", "--tokenizer", "bytes", "--run-dir"]
        step = walk([*train, f"{folder}/a", "--lr", "0.00137"], 0.00137, "optim", "step")
        built = walk([*train, f"{folder}/b", "--config", f"{folder}/run.yaml"], 52, "models", "initialise")
        for title, files in (("--lr to the step", step), ("YAML to a built model", built)):
            print(f"{title}: {len(files)} files", *files, sep="\n  ")
