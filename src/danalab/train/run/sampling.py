"""Text generators from folders: a run, or a model in Hugging Face format."""

from pathlib import Path
from typing import Any

from danalab.errors import UserError
from danalab.inference.generator import TextGenerator
from danalab.train.run.open import open_run


def open_generator(
    folder: str | Path, step: int | None = None, tokenizer: str | None = None, device: str = "cpu", **engine: Any
) -> TextGenerator:
    """The model of a run folder at `step`, or at its newest checkpoint that verifies.

    Raises:
        UserError: no run there, no such checkpoint, no tokenizer, or no such device.
    """
    from danalab.data.tokenizers import load_tokenizer
    from danalab.train.system.device import choose_device

    run = open_run(folder)
    chosen = run.tokenizer if tokenizer is None else load_tokenizer(tokenizer)
    loaded = run.load_model(step, choose_device(device))
    return TextGenerator(loaded.model.eval(), chosen, loaded.step, **engine)


def open_huggingface_generator(
    folder: str | Path, tokenizer: str | None = None, device: str = "cpu", **engine: Any
) -> TextGenerator:
    """The model of a folder in Hugging Face format: an export of ours, or another that `danalab import` accepts."""
    from danalab.data.tokenizers import load_tokenizer
    from danalab.train.run.exchange import read_model
    from danalab.train.system.device import choose_device

    model = read_model(folder)
    try:
        chosen = load_tokenizer(folder if tokenizer is None else tokenizer)
    except UserError as error:
        if tokenizer is not None:
            raise
        raise UserError(f"{error}; --tokenizer names the one that the model was trained with") from None
    return TextGenerator(model.to(choose_device(device)).eval(), chosen, **engine)
