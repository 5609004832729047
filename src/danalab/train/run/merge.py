"""A decayed model from checkpoints of a run whose learning rate stays constant, without training it again.

With theta_j the weights at the steps s_0 < ... < s_k and D the curve of a decay from s_0 to s_k, 1 to 0,

    decayed = theta_0 + sum_j w_j (theta_j - theta_(j-1)) = sum_j c_j theta_j
    w_j = mean of D over the steps from s_(j-1) to s_j;    c_0 = 1 - w_1,  c_j = w_j - w_(j+1),  c_k = w_k

This holds exactly where a smaller rate changes the length of the updates only. Source: Tian et al., arXiv 2507.17634.
"""

import itertools
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from danalab.errors import UserError
from danalab.files import read_json, write_json
from danalab.optim.schedules import DECAYS
from danalab.train.checkpoint.weights import MODEL
from danalab.train.run.exchange import new_folder, write_weights
from danalab.train.run.folder import RunFolder
from danalab.train.run.open import open_run
from danalab.train.step.average import AVERAGE

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergedRun:
    """The run folder that was written, with one checkpoint."""

    folder: Path
    steps: tuple[int, ...]
    """Steps of the checkpoints that were merged; the last one is that of the new checkpoint."""
    weights: tuple[float, ...]


def merge_weights(steps: Sequence[int], decay: str) -> list[float]:
    """The weight of each checkpoint; their sum is 1. `steps` ascend; `decay` is one of `DECAYS`."""
    curve, first, length = DECAYS["sqrt" if decay == "1-sqrt" else decay], steps[0], steps[-1] - steps[0]
    means = [
        sum(curve((step - first) / length, 0.0) for step in range(start, end)) / (end - start)
        for start, end in itertools.pairwise(steps)
    ]
    return [before - after for before, after in itertools.pairwise([1.0, *means, 0.0])]


@torch.no_grad()
def merge_run(source: str | Path, out: str | Path, *, steps: Sequence[int] = (), decay: str = "1-sqrt") -> MergedRun:
    """Write the merged model as a run folder, with the tokenizer and the configuration of `source`.

    `decay`: linear, cosine or 1-sqrt over `steps` (default all checkpoints), or "average", the run's own average of one
    checkpoint (default the newest). UserError: no such checkpoint, fewer than two, no average, or a folder in use.
    """
    run, target = open_run(source), RunFolder(new_folder(out))
    is_average = decay == "average"
    chosen = sorted(set(steps)) or run.folder.store.steps()[-1 if is_average else 0 :]
    if is_average and len(chosen) != 1:
        raise UserError(f"--as average: takes one checkpoint, not {len(chosen)}")
    if not is_average and len(chosen) < 2:
        have = ", ".join(map(str, run.folder.store.steps())) or "none"
        raise UserError(f"--as {decay}: merges at least two checkpoints; {source} has: {have} (see --keep-every)")
    weights = [1.0] if is_average else merge_weights(chosen, decay)
    rows = [] if is_average else run.metrics()
    rates = [row["lr"] for row in rows if row.get("lr") and chosen[0] < row["step"] <= chosen[-1]]
    if rates and max(rates) > 1.01 * min(rates):
        log.warning(
            "the learning rate goes from %.3g to %.3g between these checkpoints; the weights assume a constant one "
            "(--scheduler wsd --fract-decay 0, or none)", rates[0], rates[-1],
        )  # fmt: skip
    merged = run.load_model(chosen[-1], prefix=AVERAGE if is_average else MODEL).model
    state = merged.state_dict()
    for value in state.values():
        value.mul_(weights[-1])
    for step, weight in zip(chosen[:-1], weights, strict=False):
        for name, value in run.load_model(step).model.state_dict().items():
            state[name].add_(value, alpha=weight)
    made = {"run": str(run.path), "as": decay, "steps": chosen, "weights": weights}
    with target.locked():
        if run.folder.tokenizer_folder.is_dir():
            shutil.copytree(run.folder.tokenizer_folder, target.tokenizer_folder)
        write_weights(merged, target.path, step=chosen[-1])
        write_json(target.config_file, {**read_json(run.folder.config_file), "merged_from": made})
    return MergedRun(target.path, tuple(chosen), tuple(weights))
