"""Count the files that a value passes: --lr to the optimizer's step, a YAML file to a model, a ladder's to a table.

A file handles the value if a function of it has it in a variable, alone or in a dict, list or tuple, until it is where
it is used: in the optimizer, in a layer. A file hands it on if it is on the call stack then, with the record of the
run. Copies that go elsewhere, to config.json or the log, do not count. A ladder's value is its plan, a run of it, a row
with a final loss, or what is made of rows up to the table; the modules that read and print anything do not count.
"""

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from danalab.cli import app

SOURCE = f"{Path(app.__file__).parents[1]}/"
TRAIN = "d_model: 16, n_layers: 1, n_heads: 1, seq_len: 16, batch_size: 2, iterations: 1, tokenizer: bytes"
LADDER = "opts: [adamw, adana], multipliers: [1], seeds: [0], sizes: [{d_model: 16, n_layers: 1, n_heads: 1}]"


def walk(
    title: str,
    commands: list[list[str]],
    is_it: Callable[[Any], bool],
    arrives: str = "",
    used: str = "",
    apart: Sequence[str] = (),
) -> None:
    """Print the files that handle the value until FILE:FUNCTION `arrives` ends, and the stack when `used` begins."""
    handling: dict[str, None] = {}
    stack: dict[str, None] = {}
    state = {"arrived": False, "used": False}

    def has(thing: Any, depth: int = 0) -> bool:
        parts = (
            thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
        )
        return is_it(thing) or (depth < 3 and any(has(part, depth + 1) for part in [*parts][:99]))

    def look(frame: FrameType | None, event: str, _: object) -> None:
        assert frame is not None
        if (
            state["used"]
            or event not in ("call", "return")
            or not frame.f_code.co_filename.startswith(SOURCE)
        ):
            return
        here = f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_code.co_name}"
        has_it = not state["arrived"] and any(has(each) for each in [*frame.f_locals.values()])
        if has_it and here.partition(":")[0] not in apart:
            handling[here.partition(":")[0]] = None
        if here == used and event == "call" and (has_it or state["arrived"]):
            state["used"] = True
            while frame is not None:
                stack[frame.f_code.co_filename] = None
                frame = frame.f_back
        state["arrived"] |= here == arrives and has_it and event == "return"

    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        for words in commands:
            threading.setprofile(look)
            sys.setprofile(look)
            code = app.main(words)
            sys.setprofile(None)
            assert code == 0, words
    print(f"{title}: {len(handling)} files handle it", *handling, sep="\n  ")
    on = [name.removeprefix(SOURCE) for name in stack if name.startswith(SOURCE)]
    rest = [name for name in on if name not in handling]
    if rest:
        print(f"  {len(rest)} more hand on the record with it: {', '.join(rest)}")


def is_value(value: float) -> Callable[[Any], bool]:
    return lambda thing: isinstance(thing, int | float | str) and str(thing).rpartition("=")[2] == str(value)


def is_of_ladder(thing: Any) -> bool:
    named = type(thing).__name__ in ("LadderPlan", "Cell", "Tuned", "Analysis", "Saved")
    return named or (isinstance(thing, dict) and not {"final_loss", "multipliers"}.isdisjoint(thing))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        text, shape, plan = (Path(folder, name) for name in ("text.txt", "shape.yaml", "ladder.yaml"))
        text.write_text("the cat sat on the mat\n" * 3000)
        shape.write_text(f"{{mlp_dim: 52, {TRAIN}, data: {text}}}")
        plan.write_text(
            f"{{{LADDER}, fixed: {{{TRAIN.replace('iterations: 1', 'iterations: 8')}, data: {text}}}}}"
        )
        train = ["train", "--config", str(shape), "--run-dir"]
        step, layer = "optim/base.py:step", "models/layers/basic.py:__init__"
        lr = [*train, f"{folder}/a", "--lr", "0.00137"]
        walk("--lr to the step", [lr], is_value(0.00137), "optim/build.py:build_optimizer", step)
        walk("YAML to a built model", [[*train, f"{folder}/b"]], is_value(52), layer, layer)
        table = [["ladder", str(plan), "--out", f"{folder}/c"], ["report", f"{folder}/c", "--tables-only"]]
        walk("a ladder's YAML to its table", table, is_of_ladder, apart=("files.py", "cli/app.py"))
