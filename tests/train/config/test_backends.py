"""Distributed backends by name: what a plugin adds, what is asked of a row, and how one without settings is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from danalab.data.vocabulary import VocabularyInfo
from danalab.errors import UserError
from danalab.train import train
from danalab.train.config.backends import BACKENDS, RankLayout
from danalab.train.config.resolve import resolve
from danalab.train.config.train_config import RankSettings, TrainConfig
from danalab.train.parallel.layout import data_parallel_size
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.run.metrics import is_known, read_rows
from text_data import prepare_lines


class Counting(ParallelStrategy):
    """A process alone that counts its steps in each row."""

    def scalars(self) -> dict[str, float]:
        return {"own/size": float(self.world.size)}


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(BACKENDS, "_items", dict(BACKENDS._items))
    row = replace(
        BACKENDS.get("single"),
        strategy=f"{__file__}:Counting",
        join=lambda layout, device_type: World(layout=layout),
        metrics={"own/size": ("ranks", "Ranks of a step.")},
    )
    return BACKENDS.add("own-alone", row)


def test_a_run_trains_with_a_backend_that_a_plugin_added(own, tmp_path):
    data = prepare_lines(tmp_path, 60, 10, words=["one", "two", "three"], per_line=9)
    config = TrainConfig(
        data=str(data), d_model=16, n_layers=1, n_heads=1, seq_len=8, global_batch=2, iterations=2, log_interval=1,
        eval_interval=0, eval_batches=1, run_dir=tmp_path / "run", distributed_backend="Own_Alone", tune_malloc=False,
    )  # fmt: skip
    folder = train(config)
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["own/size"] for row in rows] == [1.0, 1.0]
    assert all(is_known(key) for row in rows for key in row)


def test_own_settings_are_refused_with_another_backend_and_have_defaults_with_their_own():
    own = [name for backend in BACKENDS.bundled().values() for name in backend.defaults]
    assert own
    for name in own:
        with pytest.raises(UserError, match=rf"--{name.replace('_', '-')} \S+: only with --distributed-backend"):
            RankSettings(**{name: 0.5 if "steps" not in name else 2, "distributed_backend": "ddp"})
    for name in BACKENDS:
        kind = BACKENDS.get(name)
        config = TrainConfig(heads=2, distributed_backend=name)
        spec = resolve(config, VocabularyInfo("text", "characters", 64, 64, None))
        assert {key: getattr(spec.config, key) for key in kind.defaults} == dict(kind.defaults)
        assert data_parallel_size(RankLayout(name).shape(1)) == 1


def test_an_unknown_name_is_one_line_with_those_that_are_known():
    with pytest.raises(
        UserError, match=r"unknown distributed backend 'ddpp' .did you mean 'ddp'\?.; known: single, ddp"
    ):
        RankSettings(distributed_backend="ddpp")
