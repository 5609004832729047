"""The process in which `sandbox` runs a program: sets the limits, then runs what comes on standard input.

Arguments: CPU seconds, address space and file size [bytes]. The first line of standard input is the word that goes to
standard output when the program has reached its end. It imports nothing of this package: it runs isolated.
"""

import os
import sys


def main() -> None:
    """See the module."""
    import resource

    cpu, memory, file_size = (int(word) for word in sys.argv[1:4])
    del sys.argv[1:]
    nonce, _, source = sys.stdin.buffer.read().partition(b"\n")
    verdict, report = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # the program's own output is of no use, and may be endless
    for limit, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 16),
    ):
        resource.setrlimit(limit, (value, value))
    _forbid(os.getcwd())
    try:
        exec(compile(source.decode(), "program", "exec"), {"__name__": "__main__"})
    except BaseException as error:  # SystemExit, too: the program must reach its end
        os.write(report, f"{type(error).__name__}: {str(error)[:500]}"[:2000].encode(errors="replace"))
        os._exit(1)
    os.write(verdict, nonce)
    os._exit(0)


def _forbid(folder: str) -> None:
    """An audit hook, which Python cannot remove again: no sockets, processes, foreign functions, files elsewhere."""
    forbidden = (
        "socket.", "subprocess.", "ctypes.", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
        "os.system", "os.kill", "os.chroot", "pty.", "signal.pthread_kill", "_winapi.", "shutil.rmtree",
    )  # fmt: skip
    changing = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink",
                "os.truncate", "os.utime"}  # fmt: skip
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def is_outside(path: object) -> bool:
        text = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""  # a number is a file that is open already
        return bool(text) and os.path.commonpath([folder, os.path.realpath(text)]) != folder

    def hook(event: str, arguments: tuple) -> None:
        if event.startswith(forbidden):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" and len(arguments) == 3 and arguments[2] & writes and is_outside(arguments[0]):
            raise PermissionError("files outside of the working folder are not writable here")
        if event in changing and any(is_outside(path) for path in arguments[:2]):
            raise PermissionError(f"{event} is not allowed here")

    sys.addaudithook(hook)


if __name__ == "__main__":
    main()
