"""How strong each parameter's momentum is: per parameter what the optimizer itself reports over all of them."""

import json

import pytest

from danalab.train import train
from danalab.train.run.open import open_run

MEASURED = {
    "adana": ("snr", "damped"),
    "dana-mk4": ("snr", "damped", "clipped"),
    "snoo-dana": ("snr", "tau", "clipped"),
}


def rows(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.sample(1)
@pytest.mark.parametrize("opt", MEASURED)
def test_means_over_parameters_are_the_optimizers_own_means(tiny, opt):
    run = train(tiny(opt=opt, log_dynamics=True))
    signal, metrics = rows(run / "signal.jsonl"), rows(run / "metrics.jsonl")
    assert [row["step"] for row in signal] == [row["step"] for row in metrics]
    sizes = {name: p.numel() for name, p in open_run(run).load_model().model.named_parameters()}
    for row, whole in zip(signal, metrics, strict=True):
        for key in MEASURED[opt]:
            mean = sum(row[f"{name}/{key}"] * size for name, size in sizes.items()) / sum(sizes.values())
            assert mean == pytest.approx(whole[f"optim/{key}"], rel=1e-4, abs=1e-7)


def test_an_optimizer_without_a_second_moment_has_no_such_rows(tiny):
    run = train(tiny(opt="dana", log_dynamics=True))
    assert not (run / "signal.jsonl").exists()
