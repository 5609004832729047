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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

LIMITS = {  # of each process: address space and size of a file [bytes], open files
    resource.RLIMIT_AS: 512 << 20,
    resource.RLIMIT_FSIZE: 1 << 20,
    resource.RLIMIT_NOFILE: 32,
    resource.RLIMIT_CORE: 0,
}
MAX_CREATIONS = 64  # files, folders, links and threads that an isolated process may make
MAX_LINE = 1 << 20  # bytes of an answer


class CannotIsolate(Exception):
    """This system lacks what isolation needs."""


def run_tests(
    program: str, function: str, tests: str, *, prompt: str = "", seconds: float = 5.0, trusted: bool = False
) -> str:
    """Run `tests`, statements that call `function` of a program; arguments and values are plain Python values.

    `prompt` defines what else they use; `seconds` of the clock and, rounded up, of the processor are the limit. Returns
    "passed", "timeout", or what ended the tests.
    Raises CannotIsolate: this system cannot, and the program is not `trusted`.
    """
    obstacle = why_not_isolated()
    if obstacle and not trusted:
        raise CannotIsolate(obstacle)
    task = {"function": function, "isolated": not obstacle}
    return _run({**task, "source": program}, {**task, "source": prompt, "tests": tests}, seconds)


@lru_cache(maxsize=1)
def why_not_isolated() -> str:
    """What this system lacks to isolate programs; empty where it can."""
    task = {"function": "f", "isolated": True, "source": "def f(): open('file', 'w').close()"}
    said = _run(task, {**task, "tests": "f()"}, 60)
    return "" if said == "passed" else said


def _run(program: dict[str, Any], tests: dict[str, Any], seconds: float) -> str:
    """Carry out two tasks in processes, each of which reads what the other one writes; what the tests say."""
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        (questions, asks), (answers, says) = os.pipe(), os.pipe()
        ours = [
            stack.enter_context(_process({**task, "seconds": seconds, "parent": os.getpid()}, *ends))
            for task, *ends in ((program, questions, says), (tests, answers, asks))
        ]
        try:
            for each in ours:  # their first byte, with the listener of the kernel's questions
                for listener in socket.recv_fds(each, 1, 1)[1]:
                    pool.submit(_permit, listener)
            said = ours[-1].recv(1000).decode(errors="replace").strip()
        except TimeoutError:
            return "timeout"
        except ConnectionError:
            said = ""
    return said[-200:] or "the process of the tests ended"


@contextlib.contextmanager
def _process(task: dict[str, Any], reads: int, writes: int) -> Iterator[socket.socket]:
    """Our end of the socket of a process that carries out a task, which is its standard error."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-B", os.path.abspath(__file__)]
    with ours, tempfile.TemporaryDirectory() as folder:
        streams: Any = {"stdin": reads, "stdout": writes, "stderr": theirs.detach()}
        process = subprocess.Popen(command, cwd=folder, env={}, start_new_session=True, **streams)
        try:
            for end in streams.values():  # each process sees the end of the other
                os.close(end)
            ours.settimeout(task["seconds"])
            ours.sendall(json.dumps(task).encode() + b"\n")
            yield ours
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _permit(listener: int) -> None:
    """Let the first creations of a process go on, whatever their pointers show by then; the kernel refuses others."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    for _ in range(MAX_CREATIONS):
        if not waiting.poll()[0][1] & select.POLLIN:  # the process has ended
            break
        request = bytearray(80)
        with contextlib.suppress(FileNotFoundError):  # the thread that asked has been interrupted
            fcntl.ioctl(listener, _RECEIVE, request)
            fcntl.ioctl(listener, _SEND, request[:8] + struct.pack("=qiI", 0, 0, _CONTINUE))
    os.close(listener)


# ---- the processes ----


def main() -> None:
    """Read the task, give up rights, carry it out."""
    # Standard input, output and errors get other numbers: what the program prints is of no use, and may be endless.
    null = os.open(os.devnull, os.O_RDWR)
    reads, writes, asker = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w"), socket.socket(fileno=os.dup(2))
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with asker.makefile() as lines:
        task = json.loads(lines.readline())
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != task["parent"]:
            os._exit(1)
    for limit, value in {**LIMITS, resource.RLIMIT_CPU: int(task["seconds"]) + 1}.items():
        resource.setrlimit(limit, (value, value))
    said = "passed"
    try:
        listeners = [isolate(os.getcwd())] if task["isolated"] else []
        socket.send_fds(asker, [b"."], listeners)
        for listener in listeners:
            os.close(listener)
        if "tests" in task:
            _test(task["source"], task["function"], task["tests"], reads, writes)
        else:
            asker.close()
            _serve(task["source"], task["function"], reads, writes)
    except CannotIsolate as obstacle:
        said = str(obstacle)
    except BaseException as error:
        said = described(error)
    os.write(asker.fileno(), f"\n{said}".encode())
    os._exit(0)


def _serve(source: str, name: str, questions: Any, answers: Any) -> None:
    """Answer lines by "=VALUE" or "!ERROR", in literals: define the function at an empty one, call it at arguments."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    function: Any = None
    for line in iter(questions.readline, ""):
        try:
            if line.strip():
                arguments, named = ast.literal_eval(line.strip())
                said = f"={plain(function(*arguments, **named))!a}"
            else:
                exec(compile(source, "program", "exec"), namespace)
                function, said = namespace[name], "=None"
        except BaseException as error:  # SystemExit, too
            said = f"!{described(error)}"
        answers.write(said + "\n")
        answers.flush()


def _test(source: str, name: str, tests: str, answers: Any, questions: Any) -> None:
    """Run the tests with a function that asks the other process; `source` defines what else they use."""

    def ask(question: str) -> Any:
        with contextlib.suppress(BrokenPipeError):
            questions.write(question + "\n")
            questions.flush()
        line = answers.readline(MAX_LINE)
        if not line.endswith("\n"):
            raise RuntimeError("the program's value is too long" if line else "the program ended itself")
        said = line[1:].strip()
        if line.startswith("="):
            return ast.literal_eval(said)
        kind, _, text = said.partition(": ")
        raise _ERRORS[kind](text) if kind in _ERRORS else RuntimeError(said or "no value")

    ask("")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "prompt", "exec"), namespace)
    namespace[name] = lambda *arguments, **named: ask(f"{plain(arguments)!a}, {plain(named)!a}")
    exec(compile(tests, "tests", "exec"), namespace)


_KINDS = (ArithmeticError, LookupError, TypeError, ValueError)
_ERRORS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, _KINDS)
}
"""Exceptions of the program that reach the tests as they are."""


def plain(value: Any) -> Any:
    """A value of Python's own types, which its literal gives back."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    kinds: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    for kind in (list, tuple, set):
        if isinstance(value, kind) or (kind is set and isinstance(value, frozenset)):
            return kind(plain(each) for each in value)
    raise TypeError(f"a value of type {type(value).__name__} is not plain")


def described(error: BaseException) -> str:
    """Type and text of an exception, in ASCII, which any stream takes."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return text.encode("ascii", "backslashreplace").decode()


# ---- rights ----

_PARENT_DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 1, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _EVERYTHING = 1 << 2, 1 << 3, (1 << 13) - 1
_WRITE_FILE, _DEVICES = 1 << 1, 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
_SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}  # of Landlock: links across folders, truncation, devices
_CAPABILITIES, _READ_SEARCH = 0x20080522, 1 << 2
_FILTER, _NEW_LISTENER, _RECEIVE, _SEND, _CONTINUE = 1, 1 << 3, 0xC0502100, 0xC0182101, 1
_PERMIT, _ASK, _DENY, _ABSENT = 0x7FFF0000, 0x7FC00000, 0x00050001, 0x00050026  # the last two: EPERM, ENOSYS
_MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}  # name in filters, number of seccomp
_ALL, _TRUNCATE, _CREATE = 0xFFFFFFFF, os.O_TRUNC, os.O_CREAT | 1 << 22  # the last bit is O_TMPFILE's
_EMPTIES = (_TRUNCATE, _TRUNCATE | 3)
"""Flags that empty a file for which Landlock asks no right to write: reading, and the access mode 3."""
_PERMITTED = {  # system call: number on x86_64 and on aarch64; sendmsg hands the listener over, no socket is left
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "dup": (32, 23), "dup2": (33, None), "nanosleep": (35, 101), "getpid": (39, 172), "sendfile": (40, 71),
    "sendmsg": (46, 211), "exit": (60, 93), "uname": (63, 160), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "getcwd": (79, 17), "chdir": (80, 49), "rename": (82, None), "rmdir": (84, None),
    "unlink": (87, None), "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169),
    "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "getdents64": (217, 61), "set_tid_address": (218, 96), "fadvise64": (221, 223),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38), "readlinkat": (267, 78),
    "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99), "dup3": (292, 24),
    "pipe2": (293, 59), "getrandom": (318, 278), "copy_file_range": (326, 285), "statx": (332, 291),
    "rseq": (334, 293), "faccessat2": (439, 439),
}  # fmt: skip
_CHECKED = (  # system call, its numbers, an argument, its mask, masked values: what follows; the first row that fits
    ("open", (2, None), 1, _TRUNCATE | 3, _EMPTIES, _DENY), ("open", (2, None), 1, _CREATE, (0,), _PERMIT),
    ("open", (2, None), 1, 0, (), _ASK), ("openat", (257, 56), 2, _TRUNCATE | 3, _EMPTIES, _DENY),
    ("openat", (257, 56), 2, _CREATE, (0,), _PERMIT), ("openat", (257, 56), 2, 0, (), _ASK),
    ("mkdir", (83, None), 0, 0, (), _ASK), ("mkdirat", (258, 34), 0, 0, (), _ASK),
    ("symlink", (88, None), 0, 0, (), _ASK), ("symlinkat", (266, 36), 0, 0, (), _ASK),
    # Flags of pthread_create, and of musl's, with CLONE_DETACHED; clone3 hides its flags, and libraries do without it.
    ("clone", (56, 220), 0, _ALL - 0x400000, (0x3D0F00,), _ASK), ("clone3", (435, 435), 0, 0, (), _ABSENT),
    ("renameat2", (316, 276), 4, _ALL, (0, 1), _PERMIT),  # RENAME_WHITEOUT makes a file
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC: others send signals to other processes, lock their files ...
    ("fcntl", (72, 25), 1, _ALL, (0, 1, 2, 3, 1030), _PERMIT),
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    ("ioctl", (16, 29), 1, _ALL, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), _PERMIT),
)  # fmt: skip


def isolate(folder: str) -> int:
    """Keep only the rights that the module names, for good; the listener for creations. CannotIsolate: says why not."""
    machine, libc = platform.machine(), ctypes.CDLL(None, use_errno=True)
    if not sys.platform.startswith("linux") or machine not in _MACHINES:
        raise CannotIsolate(f"isolated on Linux on x86_64 and aarch64, not on {platform.platform()}")

    def call(what: str, function: Any, *arguments: Any) -> int:
        found = function(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
        if found < 0:
            raise CannotIsolate(f"{what}: {os.strerror(ctypes.get_errno())}")
        return found

    version = call("no Landlock (Linux 5.13 and newer)", libc.syscall, _CREATE_RULESET, None, 0, 1)
    handled = _EVERYTHING | sum(bit for since, bit in _SINCE.items() if version >= since)
    # Also TCP, and abstract sockets and signals to other processes: seccomp refuses them, too.
    ruleset = struct.pack("QQQ", handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    rules = call("Landlock", libc.syscall, _CREATE_RULESET, ruleset, len(ruleset), 0)
    installed = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__)} - {"/"}
    libraries = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
    allowed = dict.fromkeys((*installed, *libraries), _READ_FILE | _READ_DIR)
    allowed |= {"/dev/null": _READ_FILE | _WRITE_FILE, "/dev/urandom": _READ_FILE}
    allowed[folder] = handled & ~_DEVICES
    for path in filter(os.path.exists, allowed):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed[path] & handled, descriptor)
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
    steps = ctypes.create_string_buffer(b"".join(_filter(machine)))
    program = struct.pack("HxxxxxxQ", len(steps) // 8, ctypes.addressof(steps))
    number = _MACHINES[machine][1]
    return call("no seccomp with a listener", libc.syscall, number, _FILTER, _NEW_LISTENER, program)


def _filter(machine: str) -> list[bytes]:
    """A program of the kernel's filter (classic BPF) over {number, machine, address, 6 arguments}."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    load, equal, end, keep, jump = 0x20, 0x15, 0x06, 0x54, 0x05
    column = list(_MACHINES).index(machine)
    found = [step(load, 4), step(equal, _MACHINES[machine][0], 1, 0), step(end, _DENY)]
    always = ((numbers, 0, 0, (), _PERMIT) for numbers in _PERMITTED.values())
    for numbers, argument, mask, values, verdict in (*always, *(row[1:] for row in _CHECKED)):
        # Of an argument the lower half, which alone the kernel reads.
        checks = [step(load, 16 + 8 * argument), step(keep, mask)]
        checks += [step(equal, value, len(values) - index) for index, value in enumerate(values)]
        checks = [*checks, step(jump, 1)] if mask else []
        if (number := numbers[column]) is not None:
            found += [step(load, 0), step(equal, number, 0, len(checks) + 1), *checks, step(end, verdict)]
    return [*found, step(end, _DENY)]


if __name__ == "__main__":
    main()
