"""The sandbox of programs: each bound holds, and only a program that reaches its end passes."""

import http.server
import threading

import pytest

from danalab.chat.rewards.sandbox import isolation, run_program


@pytest.mark.parametrize(
    "program",
    [
        "x = 1",
        "print('a' * 10**6)",
        "open('file', 'w').write('x'); assert open('file').read() == 'x'",
        "import typing, math",
    ],
)
def test_programs_that_reach_their_end_pass(program):
    assert run_program(program).passed


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("assert 1 == 2", "AssertionError"),
        ("x = (", "SyntaxError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; os._exit(0)", "ended itself"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError"),
        ("x = bytearray(10**10)", "MemoryError"),
        ("open('file', 'wb').write(b'x' * 10**8)", "File too large"),
        ("open('/tmp/outside-of-the-sandbox', 'w')", "not writable"),
        ("import os; os.remove('/tmp')", "not allowed"),
        (
            "x = [open(f'g{i}', 'w') for i in range(100)]",
            "Too many open",
        ),
        ("import subprocess; subprocess.run(['true'])", "not allowed"),
        ("import os; os.system('true')", "not allowed"),
        ("import os; os.fork()", "not allowed"),
        ("import ctypes; ctypes.CDLL(None)", "not allowed"),
        ("import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))", "ValueError"),
        ("import os; assert 'HOME' in os.environ", "AssertionError"),
    ],
)
def test_anything_else_fails_with_its_reason(program, reason):
    result = run_program(program)
    assert not result.passed
    assert reason in result.reason


@pytest.mark.parametrize(
    "program",
    ["while True: pass", "import time; time.sleep(60)", "while True: print('x' * 10**6)"],
)
def test_endless_programs_are_stopped_without_filling_the_memory(program):
    result = run_program(program, seconds=0.5)
    assert not result.passed
    assert result.reason == "timeout"


def test_the_network_is_out_of_reach_even_below_python(tmp_path):
    """A server of this machine cannot be reached: there is no interface, so no hook has to be trusted."""
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.server_port}), 2)"
        assert "not allowed" in run_program(connect).reason
        if not isolation():
            pytest.skip("this system allows no namespaces")
        import subprocess
        import sys

        done = subprocess.run([*isolation(), sys.executable, "-c", connect], capture_output=True, timeout=20)
        assert done.returncode != 0
        assert b"unreachable" in done.stderr
    finally:
        server.shutdown()
