from danalab_annexes.models.huggingface.convert import from_huggingface as from_huggingface
from danalab_annexes.models.huggingface.convert import require_class as require_class
from danalab_annexes.models.huggingface.convert import to_huggingface as to_huggingface
