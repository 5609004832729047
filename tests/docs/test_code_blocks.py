"""The check of the docs: what it does with each block, and that it fails where a page is wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from _tooling.blocks import blocks

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("docs_check", ROOT / "docs" / "check.py")
assert _SPEC is not None
assert _SPEC.loader is not None
docs_check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(docs_check)
PLACEHOLDER = re.compile(r"\.\.\. |\[--|\b(NAME|FOLDER|PATH|ACCOUNT|ENTITY)\b")


def page(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "page.md"
    file.write_text(text)
    return file


def test_a_block_is_run_by_its_language_or_its_commands(tmp_path):
    text = "```python\nx\n```\n```\ndanalab plan\n```\n```bash\nls\n```\n```\nx = y\n```\n```json\n{}\n```\n"
    assert [block.action for block in blocks(page(tmp_path, text))] == ["python", "shell", "shell", "text", "text"]


def test_a_comment_above_decides(tmp_path):
    text = (
        "<!-- not run: needs\nGPUs -->\n```\ndanalab train\n```\n"
        "<!-- from examples/a.py -->\n\n```python\nx\n```\n"
        "<!-- with: --iterations 2 -->\n```\ndanalab train --opt \\\n  lion   # a\nls\n```\n"
        "<!-- before: touch a\ntouch b -->\n```\nls\n```\nno comment\n```\ndanalab plan\n```\n"
    )
    gpus, excerpt, shorter, prepared, last = blocks(page(tmp_path, text))
    assert (gpus.action, gpus.reason, gpus.line) == ("not run", "needs GPUs", 4)
    assert (excerpt.action, excerpt.file) == ("excerpt", "examples/a.py")
    assert shorter.script == "danalab train --opt    lion --iterations 2 # a\nls"
    assert prepared.before == "touch a\ntouch b"
    assert (last.action, last.directive) == ("shell", "")


def test_a_block_with_placeholders_has_a_reason_not_to_run():
    for file in docs_check.pages():
        for block in blocks(file):
            if block.action == "shell":
                assert not PLACEHOLDER.search(re.sub(r"#.*", "", block.script)), f"{block.name}: say why it is not run"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nx = 2\n```\n```python\nassert x == 2\n```\n", ""),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```bash\ntest -e examples/plain_pytorch.py\n```\n", ""),
        ("```bash\nfalse | cat\n```\n", "exit code 1"),
        ("<!-- from examples/plain_pytorch.py -->\n```python\nno such line\n```\n", "has no line"),
    ],
)
def test_a_page_passes_or_fails(tmp_path, monkeypatch, text, fault):
    monkeypatch.setattr(docs_check, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    words = [sys.executable, str(ROOT / "docs" / "check.py"), "--run", str(page(tmp_path, text))]
    done = subprocess.run([*words, "--folder", str(tmp_path / "work")], capture_output=True, text=True, timeout=60)
    faults = [result["fault"] for result in json.loads(done.stdout.splitlines()[-1])]
    assert (fault in faults[-1]) if fault else not any(faults), done.stderr


def test_a_page_that_passed_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_check, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    file = page(tmp_path, "text\n")
    assert docs_check.check(file, "code", again=False, limit_seconds=10)["kept"] is False
    assert docs_check.check(file, "code", again=False, limit_seconds=10)["kept"] is True
    assert docs_check.check(file, "other code", again=False, limit_seconds=10)["kept"] is False
    assert docs_check.check(file, "other code", again=True, limit_seconds=10)["kept"] is False
