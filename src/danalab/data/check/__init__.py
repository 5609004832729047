"""`danalab data validate`: read a whole data set, list all its faults, and compute its statistics.

Reading streams; it needs a few MiB and 16 bytes per sequence.
"""

from danalab.data.check.result import Validation
from danalab.data.check.validation import validate
from danalab.data.dataset import Finding

__all__ = ["Finding", "Validation", "validate"]
