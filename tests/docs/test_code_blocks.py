"""The check of the docs: what it does with each block, and that it fails where a page is wrong."""

from __future__ import annotations

import codeop
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


def test_an_indented_block_runs_too(tmp_path):
    (block,) = blocks(page(tmp_path, "1. First:\n\n   ```\n   danalab plan \\\n     --heads 3\n   ```\n"))
    assert (block.action, block.text) == ("shell", "danalab plan \\\n  --heads 3\n")


def test_an_excerpt_keeps_its_own_indent(tmp_path):
    (block,) = blocks(page(tmp_path, "<!-- from examples/a.py -->\n```python\n    x = 1\n\n    y = 2\n```\n"))
    assert block.text == "    x = 1\n\n    y = 2\n"


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
    assert prepared.before == "touch a\ntouch b"
    assert prepared.action == "shell"
    assert (last.action, last.directive) == ("shell", "")
    assert (smaller.action, smaller.script, smaller.is_replaced) == ("shell", "danalab plan\nls", True)


def test_a_page_continues_in_a_copy_of_the_folder_that_another_left(tmp_path, monkeypatch):
    first, second = tmp_path / "docs" / "first.md", tmp_path / "docs" / "second.md"
    first.parent.mkdir()
    first.write_text("```bash\necho made >> file\n```\n")
    second.write_text("<!-- continues: first.md -->\n```bash\ntest made = $(cat file) && echo more >> file\n```\n")
    monkeypatch.setattr(docs_check, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    monkeypatch.setattr(docs_check, "pages", lambda: [first, second])
    for again in (False, True):
        result = docs_check.check(second, again=again, limit_seconds=10)
        assert result["passed"], result
        assert docs_check.check(first, again=False, limit_seconds=10)["kept"]
    first.write_text("```bash\nfalse\n```\n")
    result = docs_check.check(second, again=False, limit_seconds=10)
    assert result["fault"] == "first.md, which this page continues, failed"


def test_a_page_is_run_again_when_a_file_that_its_blocks_read_changes(tmp_path, monkeypatch):
    bench, page = tmp_path / "bench", tmp_path / "page.md"
    bench.mkdir()
    for name in ("read.txt", "named.sh", "other.txt"):
        (bench / name).write_text("one")
    page.write_text(f"```bash\ncat bench/named.sh\n```\n```python\nopen('{bench}/read.txt').close()\n```\n")
    monkeypatch.setattr(docs_check, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    monkeypatch.setattr(docs_check, "pages", lambda: [page])
    monkeypatch.setattr(docs_check.code_used, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    passed = {"line": 1, "action": "shell", "fault": "", "seconds": 0.0}

    def run_apart(page, folder, used, limit_seconds):
        environment = docs_check.code_used.environment(used)
        subprocess.run([sys.executable, "-c", f"open('{bench}/read.txt')"], env=environment, check=True)
        return [passed], ""

    monkeypatch.setattr(docs_check, "_run_apart", run_apart)
    assert docs_check.check(page, again=False, limit_seconds=10)["files"] == ["bench/named.sh", "bench/read.txt"]
    for name, is_kept in {"other.txt": True, "read.txt": False, "named.sh": False}.items():
        (bench / name).write_text("two")
        assert docs_check.check(page, again=False, limit_seconds=10)["kept"] == is_kept, name


def test_the_modules_that_a_page_imports_are_files_that_it_read(tmp_path):
    used = tmp_path / "used"
    environment = docs_check.code_used.environment(used)
    for _ in range(2):  # the second time from compiled files
        used.unlink(missing_ok=True)
        command = [sys.executable, "-m", "danalab", "plan", "--heads", "3"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        read = docs_check.code_used.files(used, "")
        assert {"src/danalab/scaling/plan.py", "src/danalab/cli/plan.py"} <= set(read)
        assert not any("train/trainer" in name for name in read)


def test_python_of_a_page_can_be_pasted_into_the_prompt():
    for file in docs_check.pages():
        for block in blocks(file):
            pasted = []
            if block.action != "python":
                continue
            for line in [*block.text.splitlines(), ""]:
                pasted.append(line)  # before Python 3.13 an empty line ends a loop or a class, and nothing else does
                if codeop.compile_command("\n".join(pasted), block.name) is not None:
                    pasted = []
            assert pasted == [], block.name


def test_no_command_of_a_page_escapes_the_check():
    for file in docs_check.pages():
        text = re.sub(r"^( *)```.*?^\1```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert re.findall(r"^ {4,}(?:danalab|python|bash|make|pip) .*", text, re.MULTILINE) == [], file


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


def test_a_page_whose_process_is_killed_did_not_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_check, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    file = page(tmp_path, "```bash\nkill -9 $PPID\n```\n")
    monkeypatch.setattr(docs_check, "pages", lambda: [file])
    result = docs_check.check(file, again=False, limit_seconds=10)
    assert not result["passed"]
    assert "exit code -9" in result["fault"]


def test_a_page_that_passed_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_check, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(docs_check, "ROOT", tmp_path)
    file = page(tmp_path, "text\n")
    monkeypatch.setattr(docs_check, "pages", lambda: [file])
    assert docs_check.check(file, again=False, limit_seconds=10)["kept"] is False
    assert docs_check.check(file, again=False, limit_seconds=10)["kept"] is True
