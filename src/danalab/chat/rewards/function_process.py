"""A process that serves a function which is not ours, or that runs tests which call one in another such process.

    function  of a program or a user's file; lines of arguments on standard input, "=VALUE" or "!ERROR" on standard
              output, at first one for its definition
    tests     the other end; passes where the tests reach their end, and says so on standard error

Argument: the task in JSON, or its file; "probe" only says whether this system can isolate. It needs nothing of danalab.
After `isolate` the kernel allows

    files        reading Python's installation, writing the working folder (Landlock)
    system calls those of computation, of open files, threads and clocks (seccomp); no sockets, processes, signals,
                 owners, modes, attributes, limits, mounts or tracing, for any code in the process

Values are Python literals, so neither end runs code of the other.
"""

import ast
import builtins
import ctypes
import json
import os
import platform
import runpy
import struct
import sys
from collections.abc import Callable
from typing import Any

MAX_LINE = 1 << 20
"""Bytes of a line between the two processes."""
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _EVERYTHING = 1 << 2, 1 << 3, (1 << 13) - 1
_WRITE_FILE, _DEVICES = 1 << 1, 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
_SINCE = {2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Version of Landlock -> the access that it added: links across folders, truncation, controls of devices."""
_PERMIT, _DENY, _ABSENT = 0x7FFF0000, 0x00050001, 0x00050026
"""Of a filter: allow, EPERM, ENOSYS."""
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_PERMITTED = {  # system call: number on x86_64 and on aarch64
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "ioctl": (16, 29), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "access": (21, None), "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216),
    "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None), "nanosleep": (35, 101), "getpid": (39, 172),
    "sendfile": (40, 71), "exit": (60, 93), "uname": (63, 160), "fcntl": (72, 25), "flock": (73, 32),
    "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "getcwd": (79, 17), "chdir": (80, 49),
    "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None), "unlink": (87, None), "symlink": (88, None),
    "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169), "getrusage": (98, 165),
    "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175),
    "getegid": (108, 177), "getppid": (110, 173), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "getdents64": (217, 61), "set_tid_address": (218, 96), "fadvise64": (221, 223),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38), "symlinkat": (266, 36),
    "readlinkat": (267, 78), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73),
    "set_robust_list": (273, 99), "dup3": (292, 24), "pipe2": (293, 59), "renameat2": (316, 276),
    "getrandom": (318, 278), "membarrier": (324, 283), "copy_file_range": (326, 285), "statx": (332, 291),
    "rseq": (334, 293), "faccessat2": (439, 439),
}  # fmt: skip
_OPEN, _OPENAT, _CLONE, _CLONE3 = (2, None), (257, 56), (56, 220), (435, 435)
_TRUNCATE, _WRITABLE, _THREAD = os.O_TRUNC, os.O_WRONLY | os.O_RDWR, 0x00010000


class CannotIsolate(Exception):
    """This system lacks what isolation needs."""


def main() -> None:
    """Read the task, give up rights, carry it out."""
    if sys.argv[1] == "probe":
        return _probe()
    text = sys.argv[1]
    if not text.startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    task: dict[str, Any] = json.loads(text)
    ours, theirs, report = (os.fdopen(os.dup(n), mode) for n, mode in ((1, "w"), (0, "r"), (2, "w")))
    if "path" in task:
        os.dup2(2, 1)  # what a user's function prints is for the user
        return _serve(lambda: _of_file(task["path"], task["function"]), theirs, ours)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # what the program prints is of no use, and may be endless
    _limit(*task["limits"])
    if task["isolated"]:
        isolate(os.getcwd())
    if "tests" not in task:
        return _serve(lambda: _run(task["source"], "program")[task["function"]], theirs, ours)
    try:
        _test(task["source"], task["function"], task["tests"], theirs, ours)
    except BaseException as error:
        report.write(_described(error))
        report.flush()
        os._exit(1)
    report.write("passed")
    report.flush()
    os._exit(0)


def _serve(define: Callable[[], Any], questions: Any, answers: Any) -> None:
    """Say whether the function is defined, then answer each line of arguments with its value."""

    def reply(make: Callable[[], Any]) -> bool:
        try:
            said, is_value = "=" + ascii(_plain(make())), True
        except BaseException as error:  # SystemExit, too
            said, is_value = "!" + _described(error), False
        answers.write(said + "\n")
        answers.flush()
        return is_value

    found: list[Any] = []
    if not reply(lambda: found.append(define())):
        return
    for line in iter(lambda: questions.readline(MAX_LINE), ""):
        reply(lambda line=line: _call(found[0], *ast.literal_eval(line)))


def _call(function: Any, arguments: Any, named: Any) -> Any:
    return function(*arguments, **named)


def _run(source: str, name: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def _of_file(path: str, name: str) -> Any:
    function = runpy.run_path(path).get(name)
    if not callable(function):
        raise LookupError(f"the file has no function '{name}'")
    return lambda *arguments: float(function(*arguments))  # pyright: ignore[reportArgumentType]


def _test(source: str, name: str, tests: str, answers: Any, questions: Any) -> None:
    """Run the tests with a function that asks the other process; `source` defines what else they use."""

    def candidate(*arguments: Any, **named: Any) -> Any:
        try:
            questions.write(f"{_plain(arguments)!a}, {_plain(named)!a}\n")
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

    receive()
    namespace = _run(source, "prompt")
    namespace[name] = candidate
    exec(compile(tests, "tests", "exec"), namespace)


def _plain(value: Any) -> Any:
    """A value of Python's own types, which its literal gives back."""
    kinds: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
    for kind in kinds:
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    for kind, made in ((list, list), (tuple, tuple), (set, set), (frozenset, set)):
        if isinstance(value, kind):
            return made(_plain(each) for each in value)
    raise TypeError(f"a value of type {type(value).__name__} is not plain")


def _error(text: str) -> Exception:
    """The program's exception where it is one of Python's."""
    kind: Any = getattr(builtins, text.partition(":")[0].partition(" ")[0], None)
    is_known = isinstance(kind, type) and issubclass(kind, ArithmeticError | LookupError | TypeError | ValueError)
    return kind(text.partition(": ")[2]) if is_known else RuntimeError(text or "no value")


def _described(error: BaseException) -> str:
    """Type, line and text of an exception, in ASCII, which any stream takes."""
    step, place = error.__traceback__, ""
    while step is not None:
        place, step = f" (line {step.tb_lineno})", step.tb_next
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{place}: {text}".encode("ascii", "backslashreplace").decode()


# ---- rights ----


def _limit(cpu_seconds: int, memory: int, file_size: int) -> None:
    import resource

    for limit, value in (
        (resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, 32), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NPROC, 16),
    ):  # fmt: skip
        resource.setrlimit(limit, (value, value))


def _probe() -> None:
    try:
        isolate(os.getcwd())
    except CannotIsolate as reason:
        print(reason)


def isolate(folder: str) -> None:
    """Keep only the rights that the module names; they cannot be regained. Raises CannotIsolate: says why."""
    machine = _MACHINES.get(platform.machine())
    if not sys.platform.startswith("linux") or machine is None or sys.byteorder != "little":
        raise CannotIsolate(f"programs are isolated on Linux on x86_64 and aarch64, not on {platform.platform()}")
    libc = ctypes.CDLL(None, use_errno=True)

    def call(what: str, function: Any, *arguments: Any) -> int:
        found = function(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
        if found < 0:
            raise CannotIsolate(f"{what}: {os.strerror(ctypes.get_errno())}")
        return found

    version = call("no Landlock in this kernel (Linux 5.13 and newer)", libc.syscall, _CREATE_RULESET, None, 0, 1)
    handled = _EVERYTHING | sum(bit for since, bit in _SINCE.items() if version >= since)
    rules = call(
        "Landlock", libc.syscall, _CREATE_RULESET, ctypes.create_string_buffer(struct.pack("Q", handled)), 8, 0
    )
    readable = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), "/lib", "/lib64",
                "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo"} - {"/"}  # fmt: skip
    allowed = dict.fromkeys(readable, _READ_FILE | _READ_DIR)
    allowed |= {"/dev/null": _READ_FILE | _WRITE_FILE, "/dev/urandom": _READ_FILE, folder: handled & ~_DEVICES}
    for path, access in allowed.items():
        if os.path.exists(path):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", access & handled, place))
            call(f"Landlock: {path}", libc.syscall, _ADD_RULE, rules, 1, rule, 0)
            os.close(place)
    call("no_new_privs", libc.prctl, _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call("Landlock", libc.syscall, _RESTRICT_SELF, rules, 0)
    os.close(rules)
    instructions = b"".join(_filter(machine, list(_MACHINES).index(platform.machine())))
    code = ctypes.create_string_buffer(instructions)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(instructions) // 8, ctypes.addressof(code)))
    call("no seccomp filters in this kernel", libc.prctl, _SECCOMP, _FILTER, program, 0, 0)


def _filter(machine: int, column: int) -> list[bytes]:
    """A program of the kernel's filter (classic BPF) over {number, machine, address, 6 arguments}."""

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    load, equal, any_bit, end, keep = 0x20, 0x15, 0x45, 0x06, 0x54
    argument = lambda place: 16 + 8 * place  # noqa: E731  (its lower half)
    numbers = sorted(each[column] for each in _PERMITTED.values() if each[column] is not None)
    found = [step(load, 4), step(equal, machine, 1, 0), step(end, _DENY), step(load, 0)]
    for number in numbers:
        found += [step(equal, number, 0, 1), step(end, _PERMIT)]
    for call, flags in ((_OPEN, argument(1)), (_OPENAT, argument(2))):
        number = call[column]
        if number is not None:  # O_TRUNC empties a file even where it is opened for reading
            found += [
                step(equal, number, 0, 5), step(load, flags), step(keep, _TRUNCATE | _WRITABLE),
                step(equal, _TRUNCATE, 0, 1), step(end, _DENY), step(end, _PERMIT),
            ]  # fmt: skip
    found += [step(equal, _CLONE[column], 0, 4), step(load, argument(0)), step(any_bit, _THREAD, 0, 1)]
    found += [step(end, _PERMIT), step(end, _DENY), step(equal, _CLONE3[column], 0, 1), step(end, _ABSENT)]
    return [*found, step(end, _DENY)]


if __name__ == "__main__":
    main()
