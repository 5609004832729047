"""The sandbox of programs: each bound holds for any code in the process, and only values decide whether tests pass."""

import os
import shutil

import pytest

from danalab.chat.rewards import Scorer, sandbox
from danalab.chat.rewards.sandbox import run_tests, why_not_isolated
from danalab.chat.tasks import Problem
from danalab.errors import UserError

needs_isolation = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())


def run(body, expected="None", **settings):
    """The result of `f() == expected`, with `body` in f; what f raises is the reason."""
    program = "def f():\n    " + body.replace("\n", "\n    ")
    return run_tests(program, "f", f"assert f() == {expected}, 'another value'", trusted=True, **settings)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return 1", "1"),
        ("print('a' * 10**6)\nreturn 'é\\n'", "'é\\n'"),
        ("open('file', 'w').write('x')\nreturn open('file').read()", "'x'"),
        ("import typing, math, json, decimal, collections\nreturn collections.Counter('aab')", "{'a': 2, 'b': 1}"),
        ("return [(1, 2.5, None), {True: b'x'}, {1}, set()]", "[(1, 2.5, None), {True: b'x'}, {1}, set()]"),
        ("import threading, queue\nq = queue.Queue()\nt = threading.Thread(target=q.put, args=(3,))\nt.start()\n"
         "t.join()\nreturn q.get()", "3"),
        ("import os\nos.mkdir('d')\nos.rename('d', 'e')\nos.rmdir('e')\nreturn os.listdir('.')", "[]"),
    ],
)  # fmt: skip
def test_values_that_are_right_pass(body, expected):
    assert run(body, expected).reason == "passed"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(): return 2", "another value"),
        ("x = (", "SyntaxError"),
        ("x = 1", "KeyError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended itself"),
        ("def f(): raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): return f()", "RecursionError"),
        ("def f(): return bytearray(10**10)", "MemoryError"),
        ("def f(): open('file', 'wb').write(b'x' * 10**8)", "File too large"),
        ("def f(): return [open(f'g{i}', 'w') for i in range(100)]", "Too many open"),
        ("import os\ndef f(): return os.environ['HOME']", "KeyError"),
        ("def f(): return iter([1])", "not plain"),
        ("class Equal:\n    __eq__ = lambda *_: True\ndef f(): return Equal()", "not plain"),
        ("class Equal(int):\n    __eq__ = lambda *_: True\ndef f(): return Equal(7)", "another value"),
        ("import builtins, sys\nbuiltins.AssertionError = Warning\n"
         "def f():\n    for n in range(3):\n        sys._getframe(n).f_globals['passed'] = 1", "another value"),
        ("def f():\n    import os\n    [os.write(n, b'passed') for n in range(20) if n > 5]", ""),
    ],
)  # fmt: skip
def test_anything_else_fails_with_its_reason(program, reason):
    result = run_tests(program, "f", "assert f() == 1, 'another value'", trusted=True)
    assert not result.passed
    assert reason in result.reason


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(60)", "while True: print('x' * 10**6)"])
def test_endless_programs_are_stopped_without_filling_the_memory(body):
    assert run(body, seconds=0.5).reason == "timeout"


ESCAPES = {
    "write elsewhere": "open(PLACE + '/new', 'w')",
    "write by the root's handle": "os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=os.open('/', 0))",
    "write by a path's handle": "os.open(PLACE[1:] + '/n', os.O_WRONLY | os.O_CREAT, dir_fd=os.open('/', os.O_PATH))",
    "remove by a path's handle": "os.remove(PLACE[1:] + '/file', dir_fd=os.open('/', os.O_PATH))",
    "remove": "os.remove(PLACE + '/file')",
    "empty by opening": "os.open(PLACE + '/file', os.O_RDONLY | os.O_TRUNC)",
    "truncate": "os.truncate(PLACE + '/file', 0)",
    "read": "open(PLACE + '/file').read()",
    "list": "os.listdir(PLACE)",
    "read a process": "open('/proc/self/mem', 'rb')",
    "pipe": "os.mkfifo(PLACE + '/new')",
    "attribute": "os.setxattr(PLACE + '/file', 'user.x', b'1')",
    "mode": "os.chmod(PLACE + '/file', 0o777)",
    "times": "os.utime(PLACE + '/file')",
    "owner": "os.chown(PLACE + '/file', 1, 1)",
    "link in": "os.link(PLACE + '/file', 'mine')",
    "link through": "(os.symlink(PLACE + '/file', 'mine'), open('mine', 'w'))",
    "move in": "os.rename(PLACE + '/file', 'mine')",
    "root": "os.chroot('.')",
    "signal": "os.kill(PARENT, 0)",
    "fork": "os.fork()",
    "process": "__import__('subprocess').run(['true'])",
    "system": "1 / (os.system('true') == 0)",
    "socket": "__import__('socket').socket()",
    "local socket": "__import__('socket').socket(__import__('socket').AF_UNIX)",
    "limits": "__import__('resource').prlimit(PARENT, __import__('resource').RLIMIT_CORE, (0, 0))",
    "a system call": "CALL(41, 2, 1, 0)",
    "tracing": "CALL(101, 16, PARENT, 0, 0)",
    "memory of a process": "CALL(310, PARENT, 0, 0, 0, 0, 0)",
    "namespaces": "CALL(272, 0x10000000)",
    "mounts": "CALL(165, b'x', b'/tmp', b'tmpfs', 0, 0)",
    "a 32-bit number": "CALL(41 | 0x40000000, 2, 1, 0)",
}
CALL = """import ctypes, os
def CALL(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
"""


@needs_isolation
@pytest.mark.sample(16)
@pytest.mark.parametrize("code", ESCAPES.values(), ids=ESCAPES)
def test_the_kernel_refuses_what_leaves_the_folder(code, tmp_path):
    """Also below Python: the last ones are system calls by number (of x86_64)."""
    if code.startswith("CALL") and os.uname().machine != "x86_64":
        pytest.skip("numbers of another machine")
    (tmp_path / "file").write_text("content")
    program = f"{CALL}PLACE, PARENT = {str(tmp_path)!r}, {os.getpid()}\ndef f():\n    {code}\n    return 1"
    result = run_tests(program, "f", "assert f() == 1")
    assert not result.passed
    assert any(word in result.reason for word in ("PermissionError", "ZeroDivisionError", "OSError", "BlockingIOError"))
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "content")]


@needs_isolation
def test_the_tests_are_out_of_reach():
    """Neither the frames nor the files of the process of the program hold what is expected."""
    spy = """
import gc, os, sys
def f():
    for entry in [*sys.argv, *os.listdir('.')]:
        try:
            if 'expected_77' in open(entry).read():
                return 'expected_77'
        except OSError:
            pass
    frame = sys._getframe()
    while frame:
        if 'expected_77' in str(frame.f_locals):
            return 'expected_77'
        frame = frame.f_back
"""
    spy = spy.replace("expected_77", "expected_' + '77")
    assert run_tests(spy, "f", "assert f() == 'expected_' + '77', 'unknown'").reason.endswith(": unknown")


def test_exceptions_of_the_function_reach_the_tests():
    tests = "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    assert 'zero' in str(error)\nelse:\n    assert 0"
    assert run_tests("def f(x): return 1 / x", "f", tests, trusted=True).passed


def test_without_isolation_nothing_runs_unless_the_code_is_trusted(monkeypatch):
    monkeypatch.setattr(sandbox, "why_not_isolated", lambda: "no Landlock in this kernel: not implemented")
    problem = Problem("?", "f", "code", data={"prompt": "def f():\n", "entry_point": "f", "tests": "assert f() == 3"})
    with pytest.raises(UserError, match=r"cannot be isolated here: no Landlock.*; --trust-model-code runs them"):
        Scorer()(problem, "    return 3")
    assert Scorer(trusts_model_code=True)(problem, "    return 3") == 1
    assert Scorer(trusts_model_code=True)(problem, "    return 4") == 0


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert run("open('file', 'w').write('x')\nreturn 1", "1").passed
    assert list(tmp_path.iterdir()) == []
    assert shutil.disk_usage(tmp_path).free > 0
    assert not descriptors or len(os.listdir("/proc/self/fd")) == descriptors
