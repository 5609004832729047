"""What the site is built with and how its pages are checked: contents, reference, code blocks.

An import of it lets a script of `docs` import `danalab_bench`, which is no part of the installed package.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
