from .convert import from_huggingface as from_huggingface
from .convert import require_class as require_class
from .convert import to_huggingface as to_huggingface
