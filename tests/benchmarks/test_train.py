import pytest
import torch

from danalab.benchmarks.plain_loop import PlainModel
from danalab.benchmarks.train import Case, measure
from danalab.models import ModelConfig, build_model


def test_the_loop_written_by_hand_trains_the_same_function():
    config = ModelConfig("enoki", 32, 2, 4, 8, 64, 50, 16)
    ours = build_model(config, seed=1)
    plain = PlainModel(32, 2, 4, 64, 50, 16)
    with torch.no_grad():
        names = dict(ours.named_parameters())
        plain.embedding.weight.copy_(next(p for name, p in names.items() if "embed" in name))
        plain.head.weight.copy_(ours.head_weight)
        for theirs, block in zip(plain.blocks, ours.blocks, strict=True):
            a = block.attention
            theirs.qkv.weight.copy_(torch.cat([a.q.weight, a.k.weight, a.v.weight]))
            theirs.out.weight.copy_(a.out.weight)
            weights = [p for p in block.mlp.parameters() if p.ndim == 2]
            theirs.up.weight.copy_(weights[0])
            theirs.down.weight.copy_(weights[1])
    tokens = torch.randint(50, (3, 17), generator=torch.Generator().manual_seed(0))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    loss, _ = ours(inputs, targets)
    assert plain(inputs, targets).item() == pytest.approx(loss.item(), rel=1e-5)


def test_a_measurement_has_both_speeds_their_ratio_and_the_overhead():
    said = []
    found = measure("cpu", [Case("enoki", 2, 64, 2, 16)], 1, said.append)
    (row,) = found["cases"]
    assert row["tokens_per_second"] > 0
    assert row["plain_tokens_per_second"] > 0
    assert row["speed_over_plain"]["median"] > 0
    assert 0 < row["overhead"]["median"] < 1
    assert "x plain" in said[0]
