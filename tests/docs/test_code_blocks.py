"""The check of the docs: what it does with each block, and that it fails where a page is wrong."""

from __future__ import annotations

import codeop
import re
from pathlib import Path

import pytest

import check
from _tooling.blocks import blocks
from _tooling.run_page import run_block

PLACEHOLDER = re.compile(r"\.\.\. |\[--|\b(NAME|FOLDER|PATH|ACCOUNT|ENTITY)\b")


def page(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "page.md"
    file.write_text(text)
    return file


PAGES = [check.ROOT / "README.md", *sorted((check.ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_excerpt_has_the_lines_of_its_file(page):
    for block in blocks(page):
        if block.action == "excerpt":
            assert run_block(block, {}, {}, 1.0) == ""


def test_a_block_is_run_by_its_language_or_its_commands(tmp_path):
    text = "```python\nx\n```\n```\ndanalab plan\n```\n```bash\nls\n```\n```\nx = y\n```\n```json\n{}\n```\n"
    assert [block.action for block in blocks(page(tmp_path, text))] == [
        "python",
        "shell",
        "shell",
        "text",
        "text",
    ]


def test_a_comment_above_decides(tmp_path):
    text = (
        "<!-- not run: needs\nGPUs -->\n```\ndanalab train\n```\n"
        "<!-- from examples/a.py -->\n\n```python\nx\n```\n"
        "<!-- with: --iterations 2 -->\n```\ndanalab train --opt \\\n  lion   # a\nls\n```\n"
        "<!-- before: touch a\ntouch b -->\n```\ncd b\n```\nno comment\n```\ndanalab plan\n```\n"
        "<!-- instead: danalab plan\nls -->\n```\ndanalab train\n```\n"
    )
    gpus, excerpt, shorter, prepared, last, smaller = blocks(page(tmp_path, text))
    assert (gpus.action, gpus.reason, gpus.line) == ("not run", "needs GPUs", 4)
    assert (excerpt.action, excerpt.file) == ("excerpt", "examples/a.py")
    assert shorter.script == "danalab train --opt    lion --iterations 2 # a\nls"
    assert (prepared.action, prepared.before) == ("shell", "touch a\ntouch b")
    assert (last.action, last.directive) == ("shell", "")
    assert (smaller.action, smaller.script) == ("shell", "danalab plan\nls")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```python\nx = 2\n```\n```python\nassert x == 2\n```\n", ""),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```bash\ntest -e examples/plain_pytorch.py\n```\n", ""),
        ("```bash\nfalse | cat\n```\n", "exit code 1"),
        ("<!-- from examples/plain_pytorch.py -->\n```python\nno such line\n```\n", "has no line"),
        ("```bash\nkill -9 $PPID\n```\n", "exit code -9"),
    ],
)
def test_a_page_passes_or_fails(tmp_path, text, fault):
    faults = check.check(page(tmp_path, text), tmp_path / "work", limit_seconds=60)
    assert (fault in faults[0]) if fault else faults == []


def test_a_page_continues_in_a_copy_of_the_folder_that_another_left(tmp_path):
    (tmp_path / "first.md").write_text("```bash\necho made >> file\n```\n")
    second = page(tmp_path, "<!-- continues: first.md -->\n```bash\ntest made = $(cat file)\n```\n")
    assert check.check(second, tmp_path / "work", limit_seconds=60) == []
    (tmp_path / "first.md").write_text("```bash\nfalse\n```\n")
    (fault,) = check.check(second, tmp_path / "again", limit_seconds=60)
    assert fault.startswith("first.md, which this page continues, failed")


def test_python_of_a_page_can_be_pasted_into_the_prompt():
    for file in check.pages():
        for block in blocks(file):
            pasted = []
            if block.action != "python":
                continue
            for line in [*block.text.splitlines(), ""]:
                pasted.append(
                    line
                )  # before Python 3.13 an empty line ends a loop or a class, and nothing else does
                if codeop.compile_command("\n".join(pasted), block.name) is not None:
                    pasted = []
            assert pasted == [], block.name


def test_a_block_with_placeholders_has_a_reason_not_to_run():
    for file in check.pages():
        for block in blocks(file):
            if block.action == "shell":
                assert not PLACEHOLDER.search(re.sub(r"#.*", "", block.script)), (
                    f"{block.name}: say why it is not run"
                )
