import json

import numpy as np
import pytest

from danalab.experiments.analysis import analyse
from danalab.experiments.rows import checked_row
from danalab.scaling import dimensions, flops_per_token

ENOKI = dimensions("enoki", 12)
L, d, V, T = ENOKI.n_layers, ENOKI.d_model, 50304, 2048


def test_the_exact_convention_is_matrices_head_and_attention():
    assert flops_per_token(ENOKI, T) == 72 * L * d**2 + 6 * V * d + 12 * L * d * T


def test_compute_saved_counts_the_optimizer_and_tokens_saved_do_not(tmp_path):
    law = np.geomspace(10, 1000, 30).round().astype(int).tolist()
    rows = []
    for opt, factor in (("adamw", 1.0), ("muon", 0.5)):
        points = [{"step": t, "tokens": t, "flops": 6 * t, "val/loss": 2 + (t / factor) ** -0.5} for t in law]
        (tmp_path / f"{opt}.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
        rows.append({"name": opt, "opt": opt, "params": 100, "lr": 0.1, "tokens": 1000, "flops": 6000.0,
                     "non_emb_params": 100, "final_loss": points[-1]["val/loss"],
                     "curve": str(tmp_path / f"{opt}.jsonl"),
                     "optimizer_flops": 0.0 if opt == "adamw" else 3000.0})  # fmt: skip
    found = analyse([checked_row(row) for row in rows])
    assert found.tokens_saved["muon"][100].saved == pytest.approx(0.5, abs=0.01)
    assert found.saved["muon"][100].saved == pytest.approx(0.25, abs=0.01)
    alone = analyse([checked_row(row) for row in rows], convention="model").saved["muon"][100].saved
    assert alone == pytest.approx(0.5, abs=0.01)
    assert not any("products" in note for note in found.notes)
    rows[1]["optimizer_flops"] = None
    assert any(
        "muon: FLOPs of the optimizer itself" in note
        for note in analyse([checked_row(row) for row in rows]).notes
    )
