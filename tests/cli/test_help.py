"""The help of every verb, which must come at once."""

from __future__ import annotations

import json
import subprocess
import sys

from danalab.cli.app import VERBS

ASK = """
import contextlib, importlib, io, json, sys
from danalab.cli.app import VERBS, main

shown = {}
for verb in VERBS:
    below = getattr(importlib.import_module(f"danalab.cli.{verb.replace('-', '_')}"), "SUBVERBS", ())
    for words in [[verb], *([verb, name] for name in below)]:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            main([*words, "--help"])
        heavy = [name for name in ("torch", "jax", "matplotlib", "transformers", "datasets") if name in sys.modules]
        shown[" ".join(words)] = [out.getvalue(), heavy]
print(json.dumps(shown))
"""


def test_help_imports_no_large_library():
    answer = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    shown = json.loads(answer.stdout)
    assert set(VERBS) <= shown.keys()
    for words, (text, heavy) in shown.items():
        assert f"usage: danalab {words}" in text
        assert not heavy, words
