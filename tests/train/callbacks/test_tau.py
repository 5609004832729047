import numpy as np
import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import ADana, DanaStar
from danalab.train.statistics import QUANTILES, TauStatistics, order_statistics


@pytest.fixture
def tau_of(watching):
    def make(**settings):
        model = nn.Linear(5, 3)
        optimizer = DanaStar(model.parameters())
        return model, optimizer, TauStatistics(watching(model, optimizer, **{"eval_interval": 2, **settings}))

    return make


def test_the_evaluations_number_10_20_40_and_the_last_are_due_whatever_came_before(tau_of):
    _, _, watch = tau_of()
    assert [step for step in range(1, 1001) if watch.is_due(step)] == [20, 40, 80, 160, 320, 640, 1000]


def test_without_evaluations_in_between_only_the_last_step_is_due(tau_of):
    _, _, watch = tau_of(eval_interval=0)
    assert [step for step in range(1, 1001) if watch.is_due(step)] == [1000]


def test_a_file_has_the_order_statistics_of_every_parameter(tmp_path, tau_of):
    model, optimizer, watch = tau_of()
    model(torch.randn(4, 5)).square().sum().backward()
    optimizer.step()
    watch.on_evaluated(19)
    assert not (tmp_path / "tau").exists()
    watch.on_evaluated(20)
    found = np.load(tmp_path / "tau" / "tau-step-00000020.npz")
    assert found["step"] == 20
    tau, ranks = np.sort(optimizer.state[model.weight]["tau"].numpy().ravel()), found["weight:ranks"]
    assert tuple(found["weight:shape"]) == (3, 5)
    assert tuple(found["bias:shape"]) == (3,)
    np.testing.assert_array_equal(found["weight:smallest"], tau[ranks])
    np.testing.assert_array_equal(found["weight:largest"], tau[::-1][ranks])
    np.testing.assert_allclose(found["weight:quantiles"], np.quantile(tau, QUANTILES))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_ranks_reach_from_the_first_to_the_last_value_without_repeating(n):
    ranks = order_statistics(torch.arange(n).float())["ranks"]
    assert ranks[0] == 0
    assert ranks[-1] == n - 1
    assert len(set(ranks.tolist())) == len(ranks)


def test_an_optimizer_without_tau_is_refused_by_name(watching):
    model = nn.Linear(5, 3)
    adana = ADana(model.parameters())
    with pytest.raises(UserError, match="ADana keeps no tau"):
        TauStatistics(watching(model, adana))
