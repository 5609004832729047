"""Whether the data of a run are sound and enough."""

from danalab.data import Dataset
from danalab.data.check import validate
from danalab.data.mixture import parse_mixture
from danalab.data.open import resolve_dataset
from danalab.train.config.run_spec import RunSpec
from danalab.train.preflight.verdict import Verdict

MOST_EPOCHS = 4
"""Beyond this, repeated tokens are worth clearly less than new ones (Muennighoff et al. 2023, arXiv 2305.16264)."""


def check_data(spec: RunSpec, dataset: Dataset) -> Verdict:
    """Read all data of a run: checksums, ids, a validation split; passes over the data.

    Raises:
        UserError: there is no validation split, or the vocabulary of the model is too small.
    """
    pairs = parse_mixture(spec.data.data)
    names = [spec.data.data] if pairs is None else [name for name, _ in pairs]
    folders = [resolve_dataset(name, spec.data.tokenizer) for name in names]
    dataset.open_split("val").check_vocab(spec.model.vocab_size)
    for folder in folders:
        found = validate(folder, allow_duplicates=True)
        if not found.valid:
            more = f"; {len(found.errors) - 1} more" if len(found.errors) > 1 else ""
            text = f"{found.errors[0]}{more}; danalab data validate {folder} lists all"
            return Verdict("data", "failed", text)
    epochs = spec.batches.tokens(spec.iterations) / dataset.n_tokens
    text = f"{spec.data.data}: {dataset.size}, all read; the run sees them {epochs:.2g} times"
    if epochs > MOST_EPOCHS:
        return Verdict("data", "warning", f"{text}; more than {MOST_EPOCHS} passes teach little")
    return Verdict("data", "ok", text)
