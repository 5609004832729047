"""`danalab data validate`: read any data set through, list everything that is wrong with it, and what it holds.

Faults are gathered, never raised: the first does not hide the second. Reading streams; memory is a few MiB and 16 bytes
a sequence.
"""

from __future__ import annotations

from danalab.data.check.result import Validation
from danalab.data.check.validation import validate
from danalab.data.formats.layouts import Finding

__all__ = ["Finding", "Validation", "validate"]
