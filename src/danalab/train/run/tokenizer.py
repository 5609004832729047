"""The tokenizer in a run folder, with the chat template of the model that the run starts from."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from danalab.data.tokenizers.chat_template import ChatTemplate
from danalab.errors import UserError
from danalab.train.run.folder import RunFolder

if TYPE_CHECKING:
    import numpy as np

    from danalab.data import Dataset
    from danalab.data.tokenizers import Tokenizer
    from danalab.train.config.run_spec import RunSpec
    from danalab.train.parallel.world import World

log = logging.getLogger(__name__)


def tokenizer_folder_of(model: Path) -> Path:
    """The folder with the tokenizer of a run folder, or of a folder in Hugging Face format."""
    own = RunFolder(model).tokenizer_folder
    return own if own.is_dir() else model


def starts_from(spec: "RunSpec") -> Path | None:
    """The run folder, or the folder in Hugging Face format, whose model the run starts from; None: a new model."""
    named = spec.config.init_from or spec.config.resume_from
    if named is None:
        return None
    # RUN, RUN/checkpoints, RUN/checkpoints/step-N, or a file in it
    near = [named.resolve(), *named.resolve().parents][:4]
    return next((folder for folder in near if (folder / "config.json").is_file()), None)


def keep_tokenizer(
    dataset: "Dataset", folder: RunFolder, world: "World", start: Path | None = None
) -> "np.ndarray | None":
    """Keep the tokenizer in the run folder; returns the bytes of each token, None where there is no tokenizer.

    Args: start: the model whose chat template is kept where it has the same tokenizer; see `starts_from`.
    """
    try:
        if world.is_main:
            _save(dataset.tokenizer, folder.tokenizer_folder, _template(folder, dataset.tokenizer, start))
        return dataset.token_bytes
    except UserError as error:
        if world.is_main:
            log.warning("no bits per byte, and no text from this run: %s", error)
        return None


def _template(folder: RunFolder, tokenizer: "Tokenizer", start: Path | None) -> ChatTemplate | None:
    """The chat template that the run has already, else that of the model that it starts from."""
    from danalab.data.tokenizers import load_tokenizer

    for source in (folder.tokenizer_folder, None if start is None else tokenizer_folder_of(start)):
        if source is None:
            continue
        try:
            template = ChatTemplate.read(source)
            if template is None:
                continue
            if load_tokenizer(source).fingerprint == tokenizer.fingerprint:
                return template
        except UserError as error:  # a damaged file; the tokenizer is written again
            log.warning("%s", error)
            continue
        log.info("the chat template of %s is left out: the data have another tokenizer", source)
    return None


def _save(tokenizer: "Tokenizer", folder: Path, template: ChatTemplate | None) -> None:
    """Write the tokenizer where it is missing or differs from the data's, which is reported."""
    with TemporaryDirectory() as temporary:
        tokenizer.save(temporary)
        if template is not None:
            template.save(Path(temporary))
        expected = {file.name: file.read_bytes() for file in Path(temporary).iterdir()}
        kept = {name: (folder / name).read_bytes() for name in expected if (folder / name).is_file()}
        for name in kept:
            if kept[name] != expected[name]:
                log.warning("%s: damaged or not the tokenizer of the data; it is written again", folder / name)
        if kept != expected:
            tokenizer.save(folder)
            if template is not None:
                template.save(folder)
