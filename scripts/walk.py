"""Count the files that a value passes: --lr to the optimizer's step, a YAML file to a model, a ladder's to a table.

A file handles the value if one of its functions has it in a variable, alone or in a dict, list or tuple, until the
value is where it is used: in the optimizer, in a layer. A file hands it on if it is on the call stack then, with the
record of the run. Copies that go elsewhere, to config.json or the log, do not count. On a ladder's way the value is
its plan, a run of it, a stored row, or what is made of rows up to the table.
"""

import contextlib
import io
import sys
import tempfile
import threading
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


def walk(words: list[str], value: float, arrives: str, used: str) -> tuple[list[str], list[str]]:
    """(files that handle the value until `arrives` returns, further files on the call stack when `used` is called).

    Both are FILE:FUNCTION; a function is meant when it has the value.
    """
    handling: dict[str, None] = {}
    stack: dict[str, None] = {}
    has_arrived = False

    def look(frame: FrameType | None, event: str, _: object) -> None:
        nonlocal has_arrived
        assert frame is not None
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(SOURCE):
            return
        name = frame.f_code.co_filename.removeprefix(f"{SOURCE}/")
        here, has_it = (
            f"{name}:{frame.f_code.co_name}",
            any(holds(each, value) for each in [*frame.f_locals.values()]),
        )
        if has_it and not has_arrived:
            handling[name] = None
        if here == used and event == "call" and (has_it or has_arrived):
            sys.setprofile(None)
            while frame is not None:
                stack[frame.f_code.co_filename] = None
                frame = frame.f_back
        has_arrived |= here == arrives and has_it and event == "return"

    with contextlib.redirect_stderr(io.StringIO()):
        sys.setprofile(look)
        code = app.main(words)
        sys.setprofile(None)
    assert code == 0
    own = [name.removeprefix(f"{SOURCE}/") for name in stack if name.startswith(SOURCE)]
    return list(handling), [name for name in own if name not in handling]


LADDER = ("LadderPlan", "Cell", "Tuned", "Analysis", "Saved")
"""Classes of a ladder, from its plan to compute saved; rows are dicts with a final loss."""
PLAN = "opts: [adamw, adana]\nmultipliers: [1]\nseeds: [0]\nsizes: [{d_model: 16, n_layers: 1, n_heads: 1}]\nfixed: "


def is_of_ladder(thing: Any, depth: int = 0) -> bool:
    """Whether a variable is a plan, run, row or result, or a dict or list that begins with one."""
    if type(thing).__name__ in LADDER or (isinstance(thing, dict) and "final_loss" in thing):
        return True
    parts = (
        [*thing.values()] if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else []
    )
    return depth < 2 and any(is_of_ladder(part, depth + 1) for part in parts[:2])


def ladder_walk(*commands: list[str]) -> list[str]:
    """Files of functions that handle a plan, run, row, result or table; danalab.files, which reads anything, apart."""
    handling: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename.removeprefix(f"{SOURCE}/")
        if name in handling or name == "files.py" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        if name == "experiments/formats.py" or any(map(is_of_ladder, [*frame.f_locals.values()])):
            handling[name] = None

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        for words in commands:
            for module in (sys, threading):
                module.setprofile(look)
            assert app.main(words) == 0
    sys.setprofile(None)
    threading.setprofile(None)  # pyright: ignore[reportArgumentType]
    return list(handling)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text("the cat sat on the mat\n" * 3000)
        Path(folder, "run.yaml").write_text("mlp_dim: 52\n")
        train = ["train", *MODEL.split(), "--data", f"{folder}/text.txt", "--tokenizer", "bytes", "--run-dir"]
        lr = [*train, f"{folder}/a", "--lr", "0.00137"]
        step = walk(lr, 0.00137, "optim/build.py:build_optimizer", "optim/base.py:step")
        layer = "models/layers/basic.py:__init__"
        built = walk([*train, f"{folder}/b", "--config", f"{folder}/run.yaml"], 52, layer, layer)
        for title, (handling, handing_on) in (("--lr to the step", step), ("YAML to a built model", built)):
            print(f"{title}: {len(handling)} files handle it", *handling, sep="\n  ")
            print(f"and {len(handing_on)} hand on the record with it", *handing_on, sep="\n  ")
        fixed = f"{{data: {folder}/text.txt, tokenizer: bytes, seq_len: 16, batch_size: 2, iterations: 8}}"
        Path(folder, "plan.yaml").write_text(PLAN + fixed)
        ladder = ["ladder", f"{folder}/plan.yaml", "--out", f"{folder}/c"]
        passed = ladder_walk(ladder, ["report", f"{folder}/c", "--tables-only"])
        print(f"a ladder's YAML to its table: {len(passed)} files", *passed, sep="\n  ")
