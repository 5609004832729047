from __future__ import annotations

import json

import numpy as np
import pytest

from danalab.errors import UserError
from danalab.theory import PLRF, draw
from danalab.theory.prediction import load_spectrum, predict


@pytest.fixture(scope="module")
def drawn():
    return draw(PLRF(1.0, 0.4, 1600, 400), seed=0).spectrum


@pytest.mark.slow
def test_exponents_of_a_random_draw_are_recovered(drawn):
    found = predict(drawn.lam, drawn.rho, horizon=1e4)
    assert found.alpha == pytest.approx(1.0, abs=0.06)
    assert found.beta == pytest.approx(0.4, abs=0.1)
    assert found.phase == "Ia"
    assert found.windows == pytest.approx([1.0, 1.0], abs=0.1)
    assert found.kappa == pytest.approx(1 / (2 * found.alpha))
    assert found.speedup() == pytest.approx(2 - found.kappa)
    risk = {name: curve.risk[-1] for name, curve in found.curves.items()}
    assert risk["dana-decaying"] < risk["dana-constant"] < risk["sgd"]


@pytest.mark.parametrize("suffix", [".json", ".npz", ".csv", ".txt"])
def test_every_format_gives_the_same_spectrum(tmp_path, suffix):
    lam, rho = np.arange(1, 41.0) ** -2, np.arange(1, 41.0) ** -1
    path = tmp_path / f"spectrum{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps({"lam": lam[::-1].tolist(), "rho": rho[::-1].tolist()}))
    elif suffix == ".npz":
        np.savez(path, lam=lam, rho=rho)
    else:
        np.savetxt(path, np.stack([lam, rho], 1), delimiter="," if suffix == ".csv" else " ")
    got_lam, got_rho = load_spectrum(path)
    np.testing.assert_allclose(got_lam, lam)
    np.testing.assert_allclose(got_rho, rho)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[1, 2, 3]", "at least 20"),
        ('{"eigenvalues": [1]}', "not a spectrum"),
        ("[1, -2]", "not negative"),
        ("{", "not a"),
    ],
)
def test_what_is_not_a_spectrum_is_refused(tmp_path, text, word):
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=word):
        load_spectrum(tmp_path / "s.json")


def test_a_missing_spectrum_is_refused(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        load_spectrum(tmp_path / "none.npz")


def test_beta_must_come_from_somewhere():
    with pytest.raises(UserError, match="--beta"):
        predict(np.arange(1, 41.0) ** -2)
