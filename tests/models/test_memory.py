"""Models that cannot fit in memory are refused from their configuration, before anything is allocated."""

from __future__ import annotations

import pytest

from danalab.cli.app import main
from danalab.errors import UserError
from danalab.models import ModelConfig, build_model

DATA = "stdlib"
HUGE = {
    "width": {"d_model": 100_000_000},
    "mlp": {"mlp_dim": 4_000_000_000},
    "head": {"head_dim": 2**63},
    "positions": {"seq_len": 10**11},
    "vocabulary": {"vocab_size": 10**12},
}
SMALL = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "head_dim": 8,
    "mlp_dim": 32,
    "vocab_size": 31,
    "seq_len": 16,
}


@pytest.mark.parametrize("name", HUGE)
def test_a_model_beyond_the_memory_is_refused(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("danalab.models.decoder.host_memory", lambda: 1 << 30)
    with pytest.raises(
        UserError,
        match=r"the model needs at least [\d,]+ GiB of memory, but the device has 1|machine for a model",
    ):
        build_model(ModelConfig("enoki", **{**SMALL, **HUGE[name]}))


@pytest.mark.parametrize(
    "flags",
    [
        ["--d-model", "100000", "--n-heads", "1000"],
        ["--mlp-dim", "4000000000"],
        ["--head-dim", str(2**63)],
        ["--seq-len", "100000000000"],
        ["--arch", "resonance", "--seq-len", "100000000000"],
        ["--batch-size", "100000000000"],
        ["--n-layers", "10000000"],
    ],
    ids=" ".join,
)
def test_train_refuses_it_in_one_line(flags, tmp_path, capsys):
    size = ["--d-model", "64", "--n-layers", "2", "--n-heads", "2", "--device", "cpu"]
    arguments = ["--data", str(DATA), "--run-dir", str(tmp_path / "run"), "--iterations", "2"]
    assert main(["train", *size, *flags, *arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("danalab: error: ")
    assert (
        "GiB of memory" in said
        or "equal to 2000" in said
        or "machine for a model" in said
        or "must be less than" in said
    )
