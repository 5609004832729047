"""The sandbox: runs a program that a model wrote against tests, and nothing that the program does gets out.

    tests  -- arguments -->  program          values that come back are compared where the program cannot reach,
           <--- values ----                   and the verdict is taken from the process of the tests

This file is both ends: `run_tests` for whoever asks, and a program of its own, which needs nothing but Python, for the
two processes. The kernel allows them

    files        reading Python's installation, writing the working folder (Landlock)
    system calls those of computation, of open files, threads and clocks, with the arguments that these need (seccomp);
                 no sockets, processes, signals, owners, modes, attributes, locks, limits, mounts or tracing
    creations    of files, folders, links and threads, up to a number: the kernel asks `run_tests` before each

Other tools that isolate (bubblewrap, nsjail) need user namespaces, which containers and distributions switch off, and
do not limit the number of files. Source for the checks that programs evade: Chen et al. 2021, arXiv 2107.03374.
"""

import ast
import builtins
import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

SECONDS, MEMORY_MIB, FILE_MIB = 5.0, 512, 1
"""Limits: wall time and, rounded up, processor time; address space of each process; size of a file."""
MAX_CREATIONS = 64
"""Files, folders, links and threads that an isolated process may make."""
MAX_LINE = 1 << 20
"""Bytes of an answer."""


class CannotIsolate(Exception):
    """This system lacks what isolation needs."""


class ProgramResult(NamedTuple):
    """How a program fared."""

    passed: bool
    """The tests ran to their end."""
    reason: str
    """"passed", "timeout", or the exception that ended the tests."""


def run_tests(
    program: str,
    function: str,
    tests: str,
    *,
    prompt: str = "",
    seconds: float = SECONDS,
    trusted: bool = False,
) -> ProgramResult:
    """Run `tests`, statements that call `function` of a program; arguments and values are plain Python values.

    `prompt` defines what else they use. Raises CannotIsolate: this system cannot, and the program is not `trusted`.
    """
    obstacle = why_not_isolated()
    if obstacle and not trusted:
        raise CannotIsolate(obstacle)
    common = {"function": function, "isolated": not obstacle}
    return _run([{**common, "source": program}, {**common, "source": prompt, "tests": tests}], seconds)


@lru_cache(maxsize=1)
def why_not_isolated() -> str:
    """What this system lacks to isolate programs; empty where it can."""
    result = _run([{"isolated": True, "source": "", "tests": "open('file', 'w').close()"}], 60)
    return "" if result.passed else result.reason


def _run(tasks: Sequence[dict[str, Any]], seconds: float) -> ProgramResult:
    """Carry out tasks, each in a process that reads what the one before writes; the last one has the verdict."""
    with contextlib.ExitStack() as ends, contextlib.ExitStack() as stack:
        pipes = [os.pipe() for _ in tasks]
        for end in itertools.chain(*pipes):
            ends.callback(os.close, end)
        limits = {"seconds": int(seconds) + 1, "parent": os.getpid()}
        started = [
            stack.enter_context(_process({**task, **limits}, pipes[number - 1][0], pipes[number][1]))
            for number, task in enumerate(tasks)
        ]
        ends.close()  # each process sees the end of the other
        try:
            said = _watch([asks for _, asks in started], time.monotonic() + seconds).strip()
            code = started[-1][0].wait(SECONDS)
        except (TimeoutError, subprocess.TimeoutExpired):
            return ProgramResult(False, "timeout")
    if code == 0 and said == "passed":
        return ProgramResult(True, said)
    return ProgramResult(False, said[-200:] or f"the tests ended with status {code}")


@contextlib.contextmanager
def _process(
    task: dict[str, Any], reads: int, writes: int
) -> Iterator[tuple[subprocess.Popen[Any], socket.socket]]:
    """A process that carries out a task, and our end of the socket that is its standard error."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w") as file:
        json.dump(task, file)
        file.flush()
        command = [sys.executable, "-I", "-B", str(Path(__file__).absolute()), file.name]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={},
            stdin=reads,
            stdout=writes,
            stderr=theirs.fileno(),
            start_new_session=True,
        )
        theirs.close()
        try:
            yield process, ours
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _watch(sockets: Sequence[socket.socket], deadline: float) -> str:
    """What the last process says at its end; until then, permit the first creations of each. TimeoutError: too late."""
    waiting, by_number = select.poll(), {each.fileno(): each for each in sockets}
    left: dict[int, int] = {}
    """Listener of the kernel's questions -> creations that are left."""
    for number in by_number:
        waiting.register(number, select.POLLIN)
    try:
        while True:
            ready = waiting.poll(max(0.0, 1000 * (deadline - time.monotonic())))
            if not ready:
                raise TimeoutError
            for number, event in ready:
                if number in by_number:
                    data, listeners, *_ = socket.recv_fds(by_number[number], 1000, 1)
                    for listener in listeners:
                        left[listener] = MAX_CREATIONS
                        waiting.register(listener, select.POLLIN)
                    if not listeners and by_number[number] is sockets[-1]:
                        return data.decode(errors="replace")
                    if not data:
                        waiting.unregister(number)
                elif left[number] and event & select.POLLIN:
                    left[number] -= 1
                    _permit(number)
                else:  # the kernel refuses further creations, or the process has ended
                    waiting.unregister(number)
                    os.close(number)
                    del left[number]
    finally:
        for listener in left:
            os.close(listener)


def _permit(listener: int) -> None:
    """Let a system call go on as it is: another thread may change what its pointers show, but not that it counted."""
    request = bytearray(80)
    with contextlib.suppress(FileNotFoundError):  # the thread that asked has been interrupted
        fcntl.ioctl(listener, _RECEIVE, request)
        fcntl.ioctl(listener, _SEND, request[:8] + struct.pack("=qiI", 0, 0, _CONTINUE))


# ---- the processes ----


def main() -> None:
    """Read the task, give up rights, carry it out."""
    task: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != task["parent"]:
            os._exit(1)
    # Standard input, output and errors get other numbers: what the program prints is of no use, and may be endless.
    null = os.open(os.devnull, os.O_RDWR)
    reads, writes, asker = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w"), socket.socket(fileno=os.dup(2))
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    limits = {
        resource.RLIMIT_CPU: task["seconds"],
        resource.RLIMIT_AS: MEMORY_MIB << 20,
        resource.RLIMIT_FSIZE: FILE_MIB << 20,
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    said = "passed"
    try:
        if task["isolated"]:
            listener = isolate(os.getcwd())
            socket.send_fds(asker, [b"."], [listener])
            os.close(listener)
        if "tests" not in task:
            asker.close()
            return _serve(lambda: _namespace(task["source"], "program")[task["function"]], reads, writes)
        _test(task["source"], task.get("function"), task["tests"], reads, writes)
    except CannotIsolate as obstacle:
        said = str(obstacle)
    except BaseException as error:
        said = described(error)
    os.write(asker.fileno(), said.encode())
    os._exit(said != "passed")


def _serve(define: Callable[[], Any], questions: Any, answers: Any) -> None:
    """Say whether the function is defined, then answer each line of arguments by "=VALUE" or "!ERROR", in literals."""

    def reply(make: Callable[[], Any]) -> bool:
        try:
            said, is_value = "=" + ascii(plain(make())), True
        except BaseException as error:  # SystemExit, too
            said, is_value = "!" + described(error), False
        answers.write(said + "\n")
        answers.flush()
        return is_value

    found: list[Any] = []
    if not reply(lambda: found.append(define())):
        return
    for line in iter(questions.readline, ""):
        arguments, named = ast.literal_eval(line.strip())
        reply(lambda arguments=arguments, named=named: found[0](*arguments, **named))


def _namespace(source: str, name: str) -> dict[str, Any]:
    """What a program defines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def _test(source: str, name: str | None, tests: str, answers: Any, questions: Any) -> None:
    """Run the tests with a function that asks the other process; `source` defines what else they use."""

    def candidate(*arguments: Any, **named: Any) -> Any:
        try:
            questions.write(f"{plain(arguments)!a}, {plain(named)!a}\n")
            questions.flush()
        except BrokenPipeError:
            raise RuntimeError("the program ended itself") from None
        return receive()

    def receive() -> Any:
        line = answers.readline(MAX_LINE)
        if not line.endswith("\n"):
            raise RuntimeError("the program ended itself" if not line else "the program's value is too long")
        if not line.startswith("="):
            raise _error(line[1:].strip())
        return ast.literal_eval(line[1:].strip())

    if name is not None:
        receive()
    namespace = _namespace(source, "prompt")
    if name is not None:
        namespace[name] = candidate
    exec(compile(tests, "tests", "exec"), namespace)


def _error(text: str) -> Exception:
    """The program's exception where it is one of Python's."""
    kind: Any = getattr(builtins, text.partition(":")[0].partition(" ")[0], None)
    is_known = isinstance(kind, type) and issubclass(
        kind, ArithmeticError | LookupError | TypeError | ValueError
    )
    return kind(text.partition(": ")[2]) if is_known else RuntimeError(text or "no value")


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


# ---- rights ----


_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _EVERYTHING = 1 << 2, 1 << 3, (1 << 13) - 1
_WRITE_FILE, _DEVICES = 1 << 1, 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
_SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Version of Landlock -> the access that it added: links across folders, truncation, controls of devices."""
_CAPABILITIES, _READ_SEARCH = 0x20080522, 1 << 2
_FILTER, _NEW_LISTENER, _RECEIVE, _SEND, _CONTINUE = 1, 1 << 3, 0xC0502100, 0xC0182101, 1
_PERMIT, _ASK, _DENY, _ABSENT = 0x7FFF0000, 0x7FC00000, 0x00050001, 0x00050026
"""Verdicts of a filter: allow, ask `run_tests`, EPERM, ENOSYS."""
_MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}
"""Machine -> its name in filters, and the number of seccomp."""
_PERMITTED = {  # system call: number on x86_64 and on aarch64
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "dup": (32, 23), "dup2": (33, None), "nanosleep": (35, 101), "getpid": (39, 172), "sendfile": (40, 71),
    "sendmsg": (46, 211),  # hands the listener over; no socket is left afterwards
    "exit": (60, 93), "uname": (63, 160), "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46),
    "getcwd": (79, 17), "chdir": (80, 49), "rename": (82, None), "rmdir": (84, None), "unlink": (87, None),
    "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169), "getrusage": (98, 165),
    "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "getdents64": (217, 61), "set_tid_address": (218, 96), "fadvise64": (221, 223),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38), "readlinkat": (267, 78),
    "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99), "dup3": (292, 24),
    "pipe2": (293, 59), "getrandom": (318, 278), "copy_file_range": (326, 285),
    "statx": (332, 291), "rseq": (334, 293), "faccessat2": (439, 439),
}  # fmt: skip
_ALL, _TRUNCATE, _CREATE = 0xFFFFFFFF, os.O_TRUNC, os.O_CREAT | 1 << 22
"""Masks: every bit; of flags of open: O_TRUNC; O_CREAT and the bit of O_TMPFILE."""
_EMPTIES = (_TRUNCATE, _TRUNCATE | 3)
"""Flags that empty a file for which Landlock asks no right to write: reading, and the access mode 3."""
_CHECKED = (  # system call, its numbers, an argument, its mask, masked values: what follows; the first row that fits
    ("open", (2, None), 1, _TRUNCATE | 3, _EMPTIES, _DENY), ("open", (2, None), 1, _CREATE, (0,), _PERMIT),
    ("open", (2, None), 1, 0, (0,), _ASK), ("openat", (257, 56), 2, _TRUNCATE | 3, _EMPTIES, _DENY),
    ("openat", (257, 56), 2, _CREATE, (0,), _PERMIT), ("openat", (257, 56), 2, 0, (0,), _ASK),
    ("mkdir", (83, None), 0, 0, (0,), _ASK), ("mkdirat", (258, 34), 0, 0, (0,), _ASK),
    ("symlink", (88, None), 0, 0, (0,), _ASK), ("symlinkat", (266, 36), 0, 0, (0,), _ASK),
    # Flags of pthread_create, and of musl's, with CLONE_DETACHED; clone3 hides its flags, and libraries do without it.
    ("clone", (56, 220), 0, _ALL - 0x400000, (0x3D0F00,), _ASK), ("clone3", (435, 435), 0, 0, (0,), _ABSENT),
    ("renameat2", (316, 276), 4, _ALL, (0, 1), _PERMIT),  # RENAME_WHITEOUT makes a file
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: others send signals to other processes, lock their files ...
    ("fcntl", (72, 25), 1, _ALL, (0, 1, 2, 3, 1030), _PERMIT),
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    ("ioctl", (16, 29), 1, _ALL, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), _PERMIT),
)  # fmt: skip


def isolate(folder: str) -> int:
    """Keep only the rights that the module names; they cannot be regained. Returns the listener for creations.

    Raises CannotIsolate: says why.
    """
    name = platform.machine()
    if not sys.platform.startswith("linux") or name not in _MACHINES or sys.byteorder != "little":
        raise CannotIsolate(
            f"programs are isolated on Linux on x86_64 and aarch64, not on {platform.platform()}"
        )
    libc = ctypes.CDLL(None, use_errno=True)

    def call(what: str, function: Any, *arguments: Any) -> int:
        found = function(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
        if found < 0:
            raise CannotIsolate(f"{what}: {os.strerror(ctypes.get_errno())}")
        return found

    older = "no Landlock in this kernel (Linux 5.13 and newer)"
    version = call(older, libc.syscall, _CREATE_RULESET, None, 0, 1)
    handled = _EVERYTHING | sum(bit for since, bit in _SINCE.items() if version >= since)
    # Also TCP, and abstract sockets and signals to other processes: seccomp refuses them, too.
    ruleset = struct.pack("QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    rules = call("Landlock", libc.syscall, _CREATE_RULESET, ruleset, len(ruleset), 0)
    installed = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__)} - {"/"}
    libraries = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
    allowed = {
        **dict.fromkeys((*installed, *libraries), _READ_FILE | _READ_DIR),
        "/dev/null": _READ_FILE | _WRITE_FILE,
        "/dev/urandom": _READ_FILE,
        folder: handled & ~_DEVICES,
    }
    for path, access in allowed.items():
        if os.path.exists(path):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", access & handled, descriptor)
            call(f"Landlock: {path}", libc.syscall, _ADD_RULE, rules, 1, rule, 0)
            os.close(descriptor)
    # Of root's privileges only that of reading files of any owner stays: an installation may be another user's.
    header, sets = struct.pack("II", _CAPABILITIES, 0), ctypes.create_string_buffer(24)
    call("capabilities", libc.capget, header, sets)
    kept = struct.unpack("6I", sets)[1] & _READ_SEARCH
    call("capabilities", libc.capset, header, struct.pack("6I", kept, kept, 0, 0, 0, 0))
    call("no_new_privs", libc.prctl, _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call("Landlock", libc.syscall, _RESTRICT_SELF, rules, 0)
    os.close(rules)
    steps = ctypes.create_string_buffer(b"".join(_filter(name)))
    program = struct.pack("HxxxxxxQ", len(steps) // 8, ctypes.addressof(steps))
    older = "no seccomp filters with a listener in this kernel"
    return call(older, libc.syscall, _MACHINES[name][1], _FILTER, _NEW_LISTENER, program)


def _filter(name: str) -> list[bytes]:
    """A program of the kernel's filter (classic BPF) over {number, machine, address, 6 arguments} of a machine."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    load, equal, end, keep, jump = 0x20, 0x15, 0x06, 0x54, 0x05
    column = list(_MACHINES).index(name)
    found = [step(load, 4), step(equal, _MACHINES[name][0], 1, 0), step(end, _DENY), step(load, 0)]
    for numbers in _PERMITTED.values():
        if numbers[column] is not None:
            found += [step(equal, numbers[column], 0, 1), step(end, _PERMIT)]
    for _, numbers, argument, mask, values, then in _CHECKED:
        number, count = numbers[column], len(values)
        if number is None:
            continue
        # Of an argument the lower half, which alone the kernel reads.
        found += [
            step(load, 0),
            step(equal, number, 0, count + 4),
            step(load, 16 + 8 * argument),
            step(keep, mask),
        ]
        found += [step(equal, value, count - index) for index, value in enumerate(values)]
        found += [step(jump, 1), step(end, then)]
    return [*found, step(end, _DENY)]


if __name__ == "__main__":
    main()
