"""The original training code's commands, by its relative paths: each file here prints danalab's command and runs it.

    cd scripts/original
    torchrun --standalone --nproc_per_node 2 ./src/main.py --model llama --opt adamw --heads 6
    python inference.py --checkpoint EXP --prompt "Once"
    python src/data/fineweb.py
    python src/data/fineweb_100.py --fineweb-dir fineweb

docs/parity.md lists the flags that have other names. Runs and data go where the command is started.
"""

import importlib.util
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn


def forward(*words: str) -> NoReturn:
    """Print a command of danalab and run it in this process, so that it stays a rank of torchrun."""
    if os.environ.get("RANK", "0") == "0":
        print(f"now: {shlex.join(['danalab', *words])}", file=sys.stderr, flush=True)
    if importlib.util.find_spec("danalab") is None:  # not installed: the checkout's
        sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    from danalab.cli.app import main

    sys.exit(main(words))


def renamed(words: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Words with flags under their new names; a flag whose new name is empty is left out with its value."""
    result, dropped = [], False
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if word.startswith("--") else flag
        if word.startswith("--"):
            dropped = names.get(flag) == "" and not equals
            if names.get(flag) != "":
                result.append(names.get(flag, flag) + equals + value)
        elif not dropped:
            result.append(word)
    return result
