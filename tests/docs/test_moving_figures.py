"""The arithmetic of the guide's moving figures is that of Python, and each has its place and its static pictures."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from _tooling import moving
from danalab.optim.rules.scalars import log_time_scalars
from required_tools import NODE

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS / "_static" / "figures.js"
CALLS = [
    *[("schedule", {"delta": d, "kappa": k, "t": t}) for d, k, t in ((8, 0.85, 1), (2, 0.5, 1e5), (32, 1.0, 77))],
    *[
        ("features", {"alpha": a, "beta": b, "batch": n, "method": m, "steps": 300})
        for a, b, n in ((1.0, 0.3, 1), (0.6, 0.0, 4), (1.5, 1.0, 256))
        for m in ("sgd", "momentum", "log")
    ],
    *[
        ("remaining", {"omega": w, "lr": r, "steps": n, "coupled": c, "points": 10})
        for w, r, n, c in ((4, 1e-3, 1000, 0), (4, 1e-1, 137, 0), (0.5, 1e-2, 500, 0.1))
    ],
    *[
        ("ages", {"delta": d, "peak": a, "power": p, "steps": n, "points": 10})
        for d, a, p, n in ((8, 20, -0.5, 1000), (8, 60, 1, 137), (2, 1e9, 0, 500))
    ],
    *[("power", {"gap": g, "sigma": s, "n": n}) for g, s, n in ((0.02, 0.01, 3), (0.001, 0.1, 2), (0.1, 0.001, 20))],
    *[("saved", {"gap": g, "reducible": r, "slope": p}) for g, r, p in ((0.05, 1, 0.15), (0, 2, 0.3), (0.3, 0.3, 0.5))],
]


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_the_script_computes_what_python_does():
    program = (
        f"const {{ARITHMETIC}} = require({json.dumps(str(SCRIPT))});"
        "const calls = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(calls.map(([name, given]) => ARITHMETIC[name](given))));"
    )
    done = subprocess.run([NODE, "-e", program], input=json.dumps(CALLS), capture_output=True, text=True, check=True)
    for (name, given), shown in zip(CALLS, json.loads(done.stdout), strict=True):
        expected = getattr(moving, name)(**given)
        if isinstance(expected, dict):
            expected, shown = list(expected.values()), [shown[key] for key in expected]
        assert np.shape(shown) == np.shape(expected), name
        assert shown == pytest.approx(expected, rel=1e-9, abs=2e-7), (name, given)


def test_the_schedule_is_that_of_the_optimizer():
    group = {"lr": 1e-3, "peak_lr": 1e-3, "delta": 8.0, "kappa": 0.85, "eps": 1e-8, "gamma3": 1.0, "alpha_offset": 1.0}
    scalars = log_time_scalars({**group, "weight_decay": 0.0, "wd_ts": None}, 1000)
    now = moving.schedule(8.0, 0.85, 1000)
    assert (1 - scalars["gain"], scalars["alpha"]) == pytest.approx((now["beta"], now["alpha"]))


def test_each_figure_is_on_one_page_of_the_guide_with_pictures_for_readers_without_scripts():
    names = re.findall(r"^  (\w+): \{\n    controls", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) == 6
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "guide").rglob("*.md")]
    for name in names:
        assert sum(f"figures/moving/{name}-light.svg" in page for page in pages) == 1, name
        assert all((DOCS / "figures" / "moving" / f"{name}-{theme}.svg").is_file() for theme in ("light", "dark"))
