"""The process of a `UserReward`: lines of [problem, answer] in, lines of {"value": ...} or {"error": ...} out.

Arguments: the file and the name of the function. It imports nothing of this package.
"""

import json
import math
import os
import runpy
import sys
from typing import Any


def main() -> None:
    """See the module."""
    path, name = sys.argv[1:3]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the function prints goes to standard error

    def reply(**content: object) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    try:
        function: Any = runpy.run_path(path).get(name)
    except BaseException as error:
        reply(error=_described(error))
        return
    if not callable(function):
        reply(error=f"the file has no function '{name}'")
        return
    reply(value=0.0)
    for line in sys.stdin:
        problem, answer = json.loads(line)
        try:
            score: Any = function(problem, answer)
            value = float(score)
        except BaseException as error:
            reply(error=_described(error))
            return
        if not math.isfinite(value):
            reply(error=f"returned {value}")
            return
        reply(value=value)


def _described(error: BaseException) -> str:
    frames, step = [], error.__traceback__
    while step is not None:
        frames.append(step)
        step = step.tb_next
    place = f" (line {frames[-1].tb_lineno})" if frames else ""
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{place}: {text}" if text else f"{type(error).__name__}{place}"


if __name__ == "__main__":
    main()
