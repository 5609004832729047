"""A process that serves a function which is not ours: that of a user's file.

Lines "TOKEN ARGUMENTS" on standard input are answered by "TOKEN=VALUE" or "TOKEN!ERROR" on standard output; at first
comes one for the function's definition, without a token. Values are Python literals, so neither end runs code of the
other. Argument: {"path": FILE.py, "function": NAME} in JSON. The file needs nothing of danalab.

The work is done in a child of this process, its keeper, which ends every process that the child leaves behind.
"""

import ast
import contextlib
import ctypes
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_LINE = 1 << 20
"""Bytes of an answer."""
_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1


def main() -> None:
    """Read the task and serve its function."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    fork_from_keeper(_await_hang_up)
    questions, answers, _ = take_streams()
    os.dup2(2, 1)  # what a user's function prints is for the user
    serve(lambda: _of_file(task["path"], task["function"]), questions, answers)


def take_streams() -> tuple[Any, ...]:
    """Standard input, output and errors under other numbers; whoever reads the first then finds nothing."""
    streams = tuple(os.fdopen(os.dup(number), mode) for number, mode in enumerate("rww"))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return streams


def serve(define: Callable[[], Any], questions: Any, answers: Any) -> None:
    """Say whether the function is defined, then answer each line of arguments with its value."""
    process = os.getpid()

    def reply(token: str, make: Callable[[], Any]) -> bool:
        try:
            said, is_value = "=" + ascii(plain(make())), True
        except BaseException as error:  # SystemExit, too
            said, is_value = "!" + described(error), False
        if os.getpid() != process:
            os._exit(0)  # a fork that left the function must not answer for its parent
        answers.write(token + said + "\n")
        answers.flush()
        return is_value

    found: list[Any] = []
    if not reply("", lambda: found.append(define())):
        return
    for line in iter(questions.readline, ""):
        token, _, arguments = line.partition(" ")
        reply(token, lambda arguments=arguments: _call(found[0], *ast.literal_eval(arguments)))


def _call(function: Any, arguments: Any, named: Any) -> Any:
    return function(*arguments, **named)


def _of_file(path: str, name: str) -> Any:
    file = Path(path).absolute()
    own = str(Path(__file__).absolute().parent)
    sys.path[:] = [str(file.parent), *(folder for folder in sys.path if folder != own)]  # as of `python FILE.py`
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)  # pools of processes import functions by it
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise LookupError(f"the file has no function '{name}'")
    return lambda *arguments: float(function(*arguments))  # pyright: ignore[reportArgumentType]


def plain(value: Any) -> Any:
    """A value of Python's own types, which its literal gives back."""
    kinds: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    for kind, made in ((list, list), (tuple, tuple), (set, set), (frozenset, set)):
        if isinstance(value, kind):
            return made(plain(each) for each in value)
    raise TypeError(f"a value of type {type(value).__name__} is not plain")


def described(error: BaseException) -> str:
    """Type, line and text of an exception, in ASCII, which any stream takes."""
    step, line = error.__traceback__, ""
    while step is not None:
        line, step = f" (line {step.tb_lineno})", step.tb_next
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{line}: {text}".encode("ascii", "backslashreplace").decode()


# ---- the keeper ----


def fork_from_keeper(watch: Callable[[socket.socket], None], seconds: int = 0) -> socket.socket:
    """Return in a child of this process, with its connection to the keeper, which runs `watch` with the other end.

    This process ends with the child, on SIGTERM, or after `seconds` where these are given. It first kills what the
    child has started, also what has left its session.
    """
    keeper, is_linux = os.getpid(), sys.platform.startswith("linux")
    libc = ctypes.CDLL(None)
    if is_linux:
        libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # orphans become children of the keeper
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        if is_linux:
            libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)
        return theirs
    theirs.close()
    os.setpgid(child, child)
    code = 1

    def end(*_: Any) -> None:
        raise SystemExit

    try:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, end)
        signal.alarm(seconds)
        threading.Thread(target=watch, args=(ours,), daemon=True).start()
        while True:
            process, status = os.waitpid(-1, 0)
            if process == child:
                code = os.waitstatus_to_exitcode(status)
                break
    finally:
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        _kill_children(child)
        os._exit(code if code >= 0 else 128 - code)


def _kill_children(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                for process in _children():
                    with contextlib.suppress(OSError):
                        os.kill(process, signal.SIGKILL)
                os.waitpid(-1, 0)


def _children() -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(file.read_bytes().rpartition(b")")[2].split()[1]) == os.getpid():
                found.append(int(file.parent.name))
    return found


def _await_hang_up(_: socket.socket) -> None:
    """End with the other end of standard input."""
    poll = select.poll()
    poll.register(0, 0)
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
