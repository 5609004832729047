import json

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.experiments.analysis import analyse
from danalab.experiments.rows import checked_row
from danalab.experiments.tuning import flops_of, training_flops
from danalab.models import ModelConfig
from danalab.scaling import dimensions, flops_per_token

ENOKI = dimensions("enoki", 12)
L, d, V, T = ENOKI.n_layers, ENOKI.d_model, 50304, 2048


@pytest.mark.parametrize(
    ("convention", "per_token"),
    [
        ("6nd", 72 * L * d**2 + 6 * V * d),
        ("6nd-total", 72 * L * d**2 + 12 * V * d),
        ("exact", flops_per_token(ENOKI, T)),
    ],
)
def test_every_convention_counts_enoki_as_published(convention, per_token):
    assert training_flops(ENOKI, 1e6, T, convention) == 1e6 * per_token


def test_the_exact_convention_is_matrices_head_and_attention():
    assert flops_per_token(ENOKI, T) == 72 * L * d**2 + 6 * V * d + 12 * L * d * T


def test_an_unknown_convention_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'exact'"):
        training_flops(ENOKI, 1.0, T, "exakt")


def test_experts_count_as_far_as_a_token_passes_through_them():
    common = {
        "d_model": 64,
        "n_layers": 4,
        "n_heads": 4,
        "head_dim": 16,
        "mlp_dim": 128,
        "vocab_size": 512,
        "seq_len": 128,
    }
    few = {"arch": "enoki", **common, "n_experts": 16, "top_k": 2, "expert_dim": 32}
    row = {"name": "few", "flops": 1.0, "tokens": 1.0, "settings": few}
    exact = flops_per_token(ModelConfig(**few), 128)
    attention = 12 * 4 * 64 * 128
    assert flops_of(row, 1.0, "6nd") + attention == exact


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
