"""The sandbox of programs: each bound holds for any code in the process, and only values decide whether tests pass."""

import ctypes
import os
import platform
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from danalab.chat import sandbox
from danalab.chat.rewards import Scorer
from danalab.chat.sandbox import run_tests, why_not_isolated
from danalab.chat.tasks import Problem
from danalab.errors import UserError

needs_isolation = pytest.mark.skipif(
    bool(why_not_isolated()), reason=f"this kernel does not isolate programs: {why_not_isolated()}"
)


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
    assert run(body, expected) == "passed"


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
        ("def f(): open('file', 'wb').truncate(10**8)", "File too large"),
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
    assert result != "passed"
    assert reason in result


@pytest.mark.parametrize(
    "body", ["while True: pass", "import time; time.sleep(60)", "while True: print('x' * 10**6)"]
)
def test_endless_programs_are_stopped_without_filling_the_memory(body):
    assert run(body, seconds=0.5) == "timeout"


ESCAPES = {
    # files
    "write elsewhere": "open(PLACE + '/new', 'w')",
    "write by the root's handle": "os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=os.open('/', os.O_PATH))",
    "write by a path's handle": "os.open(PLACE[1:] + '/n', os.O_WRONLY | os.O_CREAT, dir_fd=os.open('/', os.O_PATH))",
    "remove by a path's handle": "os.remove(PLACE[1:] + '/file', dir_fd=os.open('/', os.O_PATH))",
    "remove": "os.remove(PLACE + '/file')",
    "empty by opening": "os.open(PLACE + '/file', os.O_RDONLY | os.O_TRUNC)",
    "empty by opening without reading": "os.open(PLACE + '/file', 3 | os.O_TRUNC)",
    "truncate": "os.truncate(PLACE + '/file', 0)",
    "read": "open(PLACE + '/file').read()",
    "list": "os.listdir(PLACE)",
    "read through a link": "(os.symlink(PLACE + '/file', 'read'), open('read').read())",
    "read a device": "open('/dev/zero', 'rb')",
    "pipe": "os.mkfifo('fifo')",
    "device": "os.mknod('device', 0o20666, 0x103)",
    "attribute": "os.setxattr(PLACE + '/file', 'user.x', b'1')",
    "mode": "os.chmod(PLACE + '/file', 0o777)",
    "times": "os.utime(PLACE + '/file')",
    "owner": "os.chown(PLACE + '/file', 1, 1)",
    "link in": "os.link(PLACE + '/file', 'mine')",
    "link of one's own": "(open('own', 'w'), os.link('own', 'other'))",
    "link through": "(os.symlink(PLACE + '/file', 'through'), open('through', 'w'))",
    "move in": "os.rename(PLACE + '/file', 'mine')",
    "move out": "(open('own', 'w'), os.rename('own', PLACE + '/own'))",
    "a file left by a move": "CALL('renameat2', -100, b'own', -100, b'moved', 4)",
    "root": "os.chroot('.')",
    "handle": "CALL('open_by_handle_at', -1, 0, 0)",
    "allocate": "CALL('fallocate', 1, 0, 0, 1 << 30)",
    "lock a library": "fcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_EX)",
    "lock a part of it": "fcntl.lockf(os.open(os.__file__, 0), fcntl.LOCK_SH)",
    "flags of a file": "fcntl.ioctl(os.open('.', 0), 0x40086602, bytes(8))",
    "memory as a file": "CALL('memfd_create', b'x', 0)",
    "shared memory": "CALL('shmget', 0, 4096, 0o1600)",
    "shared memory by name": "os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT)",
    "memory of this process": "open('/proc/self/mem', 'rb')",
    "memory of the parent": "open(f'/proc/{PARENT}/mem', 'rb')",
    "who dies first": "open(f'/proc/{PARENT}/oom_score_adj', 'w')",
    "program of the parent": "os.readlink(f'/proc/{VICTIM}/exe')",
    "watch": "CALL('inotify_init1', 0)",
    "watch a folder": "fcntl.fcntl(os.open('.', 0), 1026, 1)",
    "watch all": "CALL('fanotify_init', 0, 0)",
    # signals
    "signal": "os.kill(VICTIM, 9)",
    "signal to the group": "os.killpg(0, 9)",
    "signal to all": "CALL('kill', -1, 0)",
    "signal to a thread": "CALL('tgkill', VICTIM, VICTIM, 9)",
    "signal to a thread alone": "CALL('tkill', VICTIM, 9)",
    "queued signal": "CALL('rt_sigqueueinfo', VICTIM, 9, 0)",
    "handle of a process": "CALL('pidfd_open', VICTIM, 0)",
    "signal by handle": "CALL('pidfd_send_signal', -1, 9, 0, 0)",
    "descriptor of a process": "CALL('pidfd_getfd', -1, 0, 0)",
    "owner of a pipe": "fcntl.fcntl(PIPE[0], 8, VICTIM)",
    "owner of a pipe, by kind": "fcntl.fcntl(PIPE[0], 15, struct.pack('ii', 1, VICTIM))",
    "signal of a pipe": "fcntl.fcntl(PIPE[0], 10, 9)",
    "asynchronous pipe": "fcntl.fcntl(PIPE[0], fcntl.F_SETFL, os.O_ASYNC)",
    "asynchronous by ioctl": "fcntl.ioctl(PIPE[0], 0x5452, struct.pack('i', 1))",
    "owner by ioctl": "fcntl.ioctl(PIPE[0], 0x8901, struct.pack('i', VICTIM))",
    "group by ioctl": "fcntl.ioctl(PIPE[0], 0x8902, struct.pack('i', VICTIM))",
    "a higher half": "CALL('fcntl', PIPE[0], 8 | 1 << 32, VICTIM)",
    "lease": "fcntl.fcntl(os.open('own', 0), 1024, fcntl.F_WRLCK)",
    "typing into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "timer with a signal": "CALL('timer_create', 0, 0, 0)",
    "alarm": "CALL('setitimer', 0, 0, 0)",
    "queue of messages": "CALL('mq_open', b'x', 0o102, 0o600, 0)",
    "notice of a message": "CALL('mq_notify', -1, 0)",
    "size of a pipe": "fcntl.fcntl(PIPE[0], 1031, 1 << 20)",
    # other processes
    "fork": "os.fork() or os._exit(0)",
    "fork by number": "CALL('clone', 17, 0, 0, 0, 0) or os._exit(0)",
    "a thread in other namespaces": "CALL('clone', 0x3d0f00 | 1 << 30, 0, 0, 0, 0)",
    "process": "__import__('subprocess').run(['true'])",
    "program": "os.execv('/bin/true', ['true'])",
    "program by handle": "CALL('execveat', -1, b'', 0, 0, 0x1000)",
    "tracing": "CALL('ptrace', 16, VICTIM, 0, 0)",
    "reading a process": "CALL('process_vm_readv', VICTIM, 0, 0, 0, 0, 0)",
    "writing a process": "CALL('process_vm_writev', VICTIM, 0, 0, 0, 0, 0)",
    "advice to a process": "CALL('process_madvise', -1, 0, 0, 0, 0)",
    "priority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 5)",
    "cores": "os.sched_setaffinity(VICTIM, {0})",
    "scheduler": "CALL('sched_setscheduler', VICTIM, 0, 0)",
    "limits": "CALL('prlimit64', VICTIM, 4, 0, 0)",
    "limits of its own": "CALL('prlimit64', 0, 0, 0, 0)",
    "priority of input": "CALL('ioprio_set', 1, VICTIM, 0)",
    "pages": "CALL('migrate_pages', VICTIM, 0, 0, 0)",
    # the kernel
    "socket": "__import__('socket').socket()",
    "local socket": "__import__('socket').socket(__import__('socket').AF_UNIX)",
    "pair of sockets": "__import__('socket').socketpair()",
    "ring": "CALL('io_uring_setup', 1, 0)",
    "program of the kernel": "CALL('bpf', 0, 0, 0)",
    "faults": "CALL('userfaultfd', 0)",
    "counters": "CALL('perf_event_open', 0, 0, -1, -1, 0)",
    "keys": "CALL('add_key', b'user', b'x', b'x', 1, -3)",
    "namespaces": "CALL('unshare', 0x10000000)",
    "mounts": "CALL('mount', b'x', b'.', b'tmpfs', 0, 0)",
    "trees of files": "CALL('open_tree', -100, b'.', 1)",
    "another way to open": "CALL('openat2', -100, b'x', 0, 0)",
    "another filter": "CALL('seccomp', 0, 0, 0)",
    "process control": "CALL('prctl', 1, 9, 0, 0, 0)",
    "user": "os.setuid(1)",
    "groups": "CALL('setgroups', 0, 0)",
    "privileges": "CALL('capset', 0, 0)",
    "privileges that root has": "(os.mkdir('shut', 0), open('shut/file', 'w'))",
    "a 32-bit number": "CALL(41 | 0x40000000, 2, 1, 0)",
    "go and list": "(os.chdir(PLACE), os.listdir('.'))",
}
NUMBERS = {  # system call: number on x86_64 and on aarch64
    "add_key": (248, 217), "bpf": (321, 280), "capset": (126, 91), "clone": (56, 220), "execveat": (322, 281),
    "fallocate": (285, 47), "fanotify_init": (300, 262), "fcntl": (72, 25), "inotify_init1": (294, 26),
    "io_uring_setup": (425, 425), "ioprio_set": (251, 30), "kill": (62, 129),
    "memfd_create": (319, 279), "migrate_pages": (256, 238), "mount": (165, 40), "mq_notify": (244, 184),
    "mq_open": (240, 180), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "openat2": (437, 437),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "prctl": (157, 167), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "renameat2": (316, 276),
    "rt_sigqueueinfo": (129, 138), "sched_setscheduler": (144, 119), "seccomp": (317, 277), "setgroups": (116, 159),
    "setitimer": (38, 103), "shmget": (29, 194), "tgkill": (234, 131), "timer_create": (222, 107),
    "tkill": (200, 130), "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip
ESCAPE = """import ctypes, errno, fcntl, os, struct
LIBC, PIPE = ctypes.CDLL(None, use_errno=True), os.pipe()
def CALL(name, *arguments):
    if LIBC.syscall(NUMBERS.get(name, name), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
def f(code):
    try:
        exec(code, globals())
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'done'
"""


@needs_isolation
def test_the_kernel_refuses_what_leaves_the_folder(tmp_path):
    """Also below Python: a CALL is a system call by its number."""
    (tmp_path / "file").write_text("content")
    victim = subprocess.Popen(["sleep", "600"])
    column = platform.machine() == "aarch64"
    program = f"""PLACE, PARENT, VICTIM = {str(tmp_path)!r}, {os.getpid()}, {victim.pid}
NUMBERS = { {name: numbers[column] for name, numbers in NUMBERS.items()} }
{ESCAPE}"""
    tests = f"""
found = {{name: f(code) for name, code in {ESCAPES!r}.items()}}
found = {{name: end for name, end in found.items() if end not in ('EPERM', 'EACCES')}}
assert not found, found
"""
    try:
        assert run_tests(program, "f", tests) == "passed"
        assert victim.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, victim.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        victim.kill()
        victim.wait()
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "content")]


def decide(machine, number, *arguments):
    """What the filter of a machine answers to a system call; its instructions, one by one."""
    data = struct.pack(
        "iIQ6Q", number, sandbox._MACHINES[machine][0], 0, *arguments, *[0] * (6 - len(arguments))
    )
    program = [struct.unpack("HBBI", step) for step in sandbox._filter(machine)]
    at = value = 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (value,) = struct.unpack_from("I", data, operand)
        elif code == 0x54:
            value &= operand
        else:
            at += operand if code == 0x05 else if_true if value == operand else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_alike_on_both_machines(machine):
    permit, ask, deny = sandbox._PERMIT, sandbox._ASK, sandbox._DENY
    column = machine == "aarch64"
    for name, numbers in NUMBERS.items():
        if name not in ("clone", "renameat2"):
            assert decide(machine, numbers[column], 0, 8, 1) == deny, name
    fcntl, ioctl, openat, clone, rename = ((72, 25), (16, 29), (257, 56), (56, 220), (316, 276))
    for call, arguments, answer in [
        *((fcntl, (0, command), permit) for command in (0, 1, 2, 3, 1030)),
        *(
            (fcntl, (0, command), deny)
            for command in (4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 36, 37, 38, 1024, 1026, 1031, 1033)
        ),
        *((fcntl, (0, command | 1 << 32), deny) for command in (6, 8, 10)),
        *((ioctl, (0, command), permit) for command in (0x5401, 0x5450, 0x5451)),
        *(
            (ioctl, (0, command), deny)
            for command in (0x5412, 0x541C, 0x5452, 0x8901, 0x8902, 0x40086602, 0xC0045877)
        ),
        *((openat, (0, 0, flags), permit) for flags in (0, 1, 2, 1 | os.O_TRUNC, 1 << 31 | 0x80000)),
        *((openat, (0, 0, flags), deny) for flags in (os.O_TRUNC, 3 | os.O_TRUNC, os.O_TRUNC | os.O_CREAT)),
        *((openat, (0, 0, flags), ask) for flags in (1 | os.O_CREAT, 1 << 22 | 2, os.O_CREAT)),
        *((clone, (flags,), ask) for flags in (0x3D0F00, 0x7D0F00)),
        *((clone, (flags,), deny) for flags in (0, 17, 0x10000, 0x3D0F00 | 1 << 30, 0x3D0F11, 0x4111)),
        *(
            (rename, (0, 0, 0, 0, flags), answer)
            for flags, answer in ((0, permit), (1, permit), (4, deny), (2, deny))
        ),
    ]:
        assert decide(machine, call[column], *arguments) == answer, (call, arguments)
    assert decide(machine, 435) == sandbox._ABSENT
    known = {numbers[column] for numbers in sandbox._PERMITTED.values()}
    known |= {row[1][column] for row in sandbox._CHECKED}
    assert {number for number in range(-1, 1000) if decide(machine, number) != deny} <= known
    assert decide(machine, 0x40000000) == deny


def test_numbers_of_system_calls_are_those_of_libseccomp():
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("no libseccomp")
    rows = [*sandbox._PERMITTED.items(), *(row[:2] for row in sandbox._CHECKED), *NUMBERS.items()]
    for name, numbers in rows:
        for (architecture, _), number in zip(sandbox._MACHINES.values(), numbers, strict=True):
            found = resolve(ctypes.c_uint32(architecture), name.encode())
            assert found == number or (number is None and found < 0), name


@needs_isolation
@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "code",
    [
        "open(str(n), 'w').close()",
        "os.mkdir(str(n))",
        "os.mkdir('nested'); os.chdir('nested')",
        "os.mkdir(str(n), 0)",
        "os.symlink('.', str(n))",
        "os.close(os.open('.', os.O_TMPFILE | os.O_RDWR))",
        "os.close(os.open('renamed', os.O_CREAT)); os.rename('renamed', str(n))",
        "made.append(open('removed', 'wb')); os.unlink('removed'); made[-1].truncate(1 << 20)",
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    ],
)
def test_a_program_makes_few_files_folders_links_and_threads(code, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = """
import os, threading, time
threading.stack_size(1 << 15)
made = []
def f(code):
    for n in range(500):
        try:
            exec(code, {**globals(), 'n': n})
        except (OSError, RuntimeError):
            return n
"""
    assert run_tests(program, "f", f"n = f({code!r})\nassert n <= 64, n", seconds=20) == "passed"
    assert list(tmp_path.iterdir()) == []


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
    assert run_tests(spy, "f", "assert f() == 'expected_' + '77', 'unknown'").endswith(": unknown")


def test_without_isolation_nothing_runs_unless_the_code_is_trusted(monkeypatch):
    monkeypatch.setattr(sandbox, "why_not_isolated", lambda: "no Landlock in this kernel: not implemented")
    problem = Problem(
        "?", "f", "code", data={"prompt": "def f():\n", "entry_point": "f", "tests": "assert f() == 3"}
    )
    with pytest.raises(
        UserError, match=r"cannot be isolated here: no Landlock.*; --trust-model-code runs them"
    ):
        Scorer()(problem, "    return 3")
    assert Scorer(trusts_model_code=True)(problem, "    return 3") == 1
    assert Scorer(trusts_model_code=True)(problem, "    return 4") == 0


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert run("open('file', 'w').write('x')\nreturn 1", "1") == "passed"
    assert list(tmp_path.iterdir()) == []
    assert shutil.disk_usage(tmp_path).free > 0
    assert not descriptors or len(os.listdir("/proc/self/fd")) == descriptors


def test_processes_of_a_trusted_program_end_with_it(monkeypatch):
    """Also those that hold every open file of the program."""
    monkeypatch.setattr(sandbox, "why_not_isolated", lambda: "no Landlock in this kernel: not implemented")
    program = """
import os, time
def f():
    reads, writes = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.write(writes, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    return int(os.read(reads, 20))
"""
    ended = run_tests(program, "f", "raise ValueError(f())", trusted=True)
    state = Path(f"/proc/{ended.rpartition(': ')[2]}/stat")

    def lives() -> bool:
        try:
            return ") Z " not in state.read_text()
        except OSError:
            return False

    until = time.monotonic() + 20  # killed; the kernel takes a moment
    while lives() and time.monotonic() < until:
        time.sleep(0.01)
    assert time.monotonic() < until


@needs_isolation
@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((317, 277), "no seccomp with a listener: "),
        ((444, 444), "no Landlock "),
    ],
)
def test_a_system_without_seccomp_or_landlock_says_so_in_one_line(numbers, said, tmp_path):
    """A filter takes the system call away, as old kernels and containers do."""
    script = f"""
import ctypes, struct
number = {numbers[platform.machine() == "aarch64"]}
steps = (0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
import sandbox
print(sandbox.why_not_isolated())
"""
    words = [
        sys.executable,
        "-c",
        f"import sys\nsys.path[0] = {os.path.dirname(sandbox.__file__)!r}\n{script}",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(said)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


FORGED = {
    "the right value from elsewhere": "w(b'=5\\n'); time.sleep(9)",
    "depth": "w(b'='+b'('*60000+b'\\n'); time.sleep(9)",
    "lists in lists": "w(b'='+b'['*200000+b'\\n'); time.sleep(9)",
    "signs": "w(b'='+b'-'*900000+b'1\\n'); time.sleep(9)",
    "sums": "w(b'='+b'1+'*400000+b'1j\\n'); time.sleep(9)",
    "digits": "w(b'='+b'9'*1000000+b'\\n'); time.sleep(9)",
    "many lists": "w(b'=['+b'[],'*340000+b']\\n'); time.sleep(9)",
    "colliding keys": "w(('={'+','.join(str(i*(2**61-1))+':0' for i in range(40000))+'}\\n').encode())",
    "colliding members": "w(('={'+','.join(str(i*(2**61-1)) for i in range(1,45000))+'}\\n').encode()); time.sleep(9)",
    "a form feed": "w(b'=471\\x0c1\\n'); time.sleep(9)",
    "zero byte": "w(b'=\\x00\\n'); time.sleep(9)",
    "no UTF-8": "w(b'=\\xff\\xfe\\n'); time.sleep(9)",
    "a line without end": "w(b'='+b'1'*(3<<20)); time.sleep(9)",
    "an exit": "w(b'!SystemExit: 0\\n'); time.sleep(9)",
    "an interrupt": "w(b'!KeyboardInterrupt: 0\\n'); time.sleep(9)",
    "an assertion": "w(b'!AssertionError: passed\\n'); time.sleep(9)",
    "an error that takes more": "w(b'!UnicodeDecodeError: x\\n'); time.sleep(9)",
    "a known error": "w(b'!KeyError: x\\n'); time.sleep(9)",
    "a return in the line": "w(b'=1\\r=4711\\n'); time.sleep(9)",
    "infinity": "w(b'=1e999\\n'); time.sleep(9)",
    "a flood": "[os.write(5, b'=1\\n'*1000) for _ in iter(int, 1)]",
    "words of a pass": "w(b'!RuntimeError: passed\\n'); time.sleep(9)",
}


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_a_program_that_writes_its_own_answers_passes_no_test(body):
    """Answers go through the descriptor 5 of the program."""
    program = f"import os, time\ndef w(d):\n    while d: d = d[os.write(5, d):]\ndef f():\n    {body}\n"
    result = run_tests(program, "f", "r = f()\nassert r == 4711, 'another'", seconds=3, trusted=True)
    assert result != "passed"


def test_exceptions_of_the_function_reach_the_tests():
    tests = "try:\n    f(0)\nexcept ZeroDivisionError as error:\n    assert 'zero' in str(error)\nelse:\n    assert 0"
    assert run_tests("def f(x): return 1 / x", "f", tests, trusted=True) == "passed"
