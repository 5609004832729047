import pytest
import torch

from danalab.errors import UserError
from danalab.models import ModelConfig, build_model
from danalab_bench.peers import PlainModel
from danalab_bench.train import TrainingCase
from danalab_bench.train_cpu import ThreadedCase, cells, measure


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


@pytest.mark.slow
def test_a_measurement_has_the_speed_of_each_side_and_their_ratios():
    said = []
    cell = ThreadedCase(TrainingCase("enoki", 2, 64, 2, 16), 1)
    found = measure([cell], 1, said.append, ("trainer float32", "loop float32"))
    (row,) = found["cells"]
    ours, theirs = row["sides"]["trainer float32"], row["sides"]["loop float32"]
    assert ours["tokens_per_second"] > 0
    assert ours["over loop float32"]["median"] == pytest.approx(ours["tokens_per_second"] / theirs["tokens_per_second"])
    assert 0 < ours["overhead"]["median"] < 1
    assert row["matrix_rate"]["float32"] > 0
    assert "x loop float32" in said[0]


@pytest.mark.slow
def test_a_side_that_fails_is_named():
    with pytest.raises(UserError, match="trainer in float32 ended with exit code"):
        measure([ThreadedCase(TrainingCase("enoki", 0, 64, 2, 16), 1)], 1, print, ("trainer float32",))


def test_the_cells_are_all_sizes_lengths_and_threads():
    assert len({(c.case.heads, c.case.seq_len, c.threads) for c in cells((2, 4), (1, 2))}) == 8
