"""`python -m danalab.benchmarks.gpu.process SECTION FILE DEVICE quick|full`: one section, in a process of its own.

A task that fails is a row with its error, and the next one follows; FILE is written after each.
"""

import sys
import time
import traceback
from typing import Any

from danalab.benchmarks.gpu.sections import SECTIONS
from danalab.benchmarks.gpu.table import line
from danalab.benchmarks.timing import machine
from danalab.errors import UserError
from danalab.files import write_json


def main() -> None:
    """Run the section of the command line."""
    name, file, device, quick = sys.argv[1:5]
    rows: list[dict[str, Any]] = []
    for label, work in SECTIONS[name](device, quick == "quick"):
        start = time.perf_counter()
        try:
            row = work()
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc()
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            row = {"error": reason if isinstance(error, UserError) else f"{type(error).__name__}: {reason}"}
        rows.append({"task": label, **row, "seconds_taken": round(time.perf_counter() - start, 2)})
        write_json(file, {"machine": machine(device), "rows": rows})
        print(line(name, rows[-1]), flush=True)


if __name__ == "__main__":
    main()
