"""The process that renders chat templates: Jinja in a sandbox, within limits on processor time, memory and text.

A program of its own, which imports nothing of danalab. The first line of standard input is the template, each further
one a JSON object of variables; each is answered by {"text"}, {"refused"}, {"malformed"} or {"failed"}. A template that
exceeds the processor time ends the process.
"""

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any

CPU_SECONDS = 1
"""Processor time of a rendering, or of the compilation [s]."""
MEMORY_BYTES = 512 << 20
"""Address space [bytes]."""
MAX_CHARACTERS = 1 << 22
"""Length of a rendered text."""


class Refusal(Exception):
    """`raise_exception` of a template."""


def compile_template(text: str) -> Any:
    """A template in the dialect of transformers."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """{% generation %}: marks what the assistant says; here its content alone."""

        tags = {"generation"}  # noqa: RUF012  (as the base class has it)

        def parse(self, parser: Any) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(reason: object) -> None:
        raise Refusal(reason)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False, **how})
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(text)


def render(template: Any, variables: dict[str, Any]) -> dict[str, str]:
    """The answer to one line."""
    pieces, length = [], 0
    try:
        for piece in template.generate(**variables):
            length += len(piece)
            if length > MAX_CHARACTERS:
                return {"failed": f"its text is longer than {MAX_CHARACTERS:,} characters"}
            pieces.append(piece)
    except Refusal as error:
        return {"refused": _line(error)}
    except Exception as error:  # a template may do anything
        return {"failed": f"{type(error).__name__}: {_line(error)}"}
    return {"text": "".join(pieces)}


def main() -> None:
    """Answer line after line; ends with the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    template = None
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        content = json.loads(line)
        if template is None:
            try:
                template, answer = compile_template(content), {"text": ""}
            except Exception as error:  # also RecursionError, MemoryError
                answer = {"malformed": _line(error)}
        else:
            answer = render(template, content)
        print(json.dumps(answer), flush=True)


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


if __name__ == "__main__":
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # the folder of this file holds no modules for others
    main()
