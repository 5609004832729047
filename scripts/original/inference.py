"""`inference.py --checkpoint RUN` is `danalab eval RUN`; with --prompt `danalab generate`; see forward.py."""

import sys

from forward import forward, renamed

NAMES = {"--checkpoint": "--run", "--resume-from": "--run", "--stream": ""}  # a text is always streamed

if __name__ == "__main__":
    words = renamed(sys.argv[1:], NAMES)
    forward("generate" if "--prompt" in words else "eval", *words)
