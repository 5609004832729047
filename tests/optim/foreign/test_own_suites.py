"""schedulefree's and heavyball's own tests (their source archives) on our optimizers.

What is left out, and why:

- schedulefree: `test_schedulefree_radam` (there is no schedule-free RAdam here), `test_equiv` (no optimizer in it).
- heavyball, tests of its own arguments: ema, caution, mars, clip, merge, stochastic_updates, bf16_q, bf16_storage,
  channels_last (`warmup_steps`), bf16_params (which asserts nothing), hook (its own function).
- heavyball, tests of its own parts: chainable, helpers, utils, soap, psgd_precond_init, singular_values, migrate_cli,
  cpu_features.
- heavyball, no_grad: the state exists from the construction on here, also of what never has a gradient.
- heavyball, tests of a GPU's memory: memory, memory_leak, foreach.
- heavyball, `merge_dims` and `split` in save_restore: none of ours has these arguments.
- heavyball, the largest tensors of nd_param, of 16^4 and 16^5 elements: for time alone.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys

import pytest
import torch

from danalab.optim import build_optimizer
from sdists import sdist

STAND_INS = """
import sys, types
import torch
from danalab import optim

names = ("ADana", "AdamWDecayingWD", "AdEMAMix", "AdEMAMixDecayingWD", "Dana", "DanaMK4", "DanaStar", "DanaStarMK4",
         "SignDana", "DanaMuon", "DMuon", "Manau")
heavyball, utils = types.ModuleType("heavyball"), types.ModuleType("heavyball.utils")
heavyball.__all__, heavyball.utils = list(names), utils
for name in names:
    setattr(heavyball, name, getattr(optim, name))
utils.set_torch = utils.clean = lambda: None
utils.StatefulOptimizer = torch.optim.Optimizer
lightbench = types.ModuleType("lightbench.utils")


def get_optim(build, params, lr, **_):
    optimizer = build(params, lr=lr)
    optimizer.state_size = lambda: len(optimizer.state)  # printed
    return optimizer


lightbench.get_optim = get_optim
sys.modules |= {"heavyball": heavyball, "heavyball.utils": utils, "lightbench": types.ModuleType("lightbench"),
                "lightbench.utils": lightbench}
"""
SUITE = ("closure", "save_restore", "optimizer_cpu_smoke", "toy_training", "nd_param")


def ours(name: str):
    """Builds our optimizer by schedulefree's words: its warm-up, which is a schedule here, beside it."""

    def build(params, warmup_steps: int = 1, foreach: bool | None = None, **settings):
        optimizer = build_optimizer(name, params, foreach=foreach, **settings)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / warmup_steps))
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    return build


@pytest.mark.slow
@pytest.mark.parametrize("case", ["schedulefree_wrapper", "schedulefree_wrapper_reference", "schedulefree_sgd",
                                  "schedulefree_adam", "foreach", "compile"])  # fmt: skip
def test_schedulefrees_tests_pass(case, tmp_path_factory, monkeypatch):
    source = sdist("schedulefree", "1.4.1", tmp_path_factory.getbasetemp().parent)
    monkeypatch.syspath_prepend(str(source))
    scope: dict = {"__name__": "suite"}
    text = (source / "schedulefree/test_schedulefree.py").read_text().replace(".cuda()", "")
    exec(compile(text, "test_schedulefree.py", "exec"), scope)
    scope |= {"AdamWScheduleFree": ours("sf-adamw"), "SGDScheduleFree": ours("sf-sgd")}
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        scope[f"test_{case}"]()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_heavyballs_tests_pass(tmp_path, tmp_path_factory):
    source = sdist("heavyball", "2.1.4", tmp_path_factory.getbasetemp().parent)
    (tmp_path / "stand_ins.py").write_text(STAND_INS)
    for name in SUITE:
        text = (source / f"test/test_{name}.py").read_text()
        (tmp_path / f"test_{name}.py").write_text(text.replace(".cuda()", "").replace('device="cuda"', 'device="cpu"'))
    words = ["-q", "-c", "/dev/null", "-p", "stand_ins", "-p", "no:cacheprovider", "--timeout=600"]
    words += ["-k", "not (save_restore and True) and not (nd_param and (4-16 or 5-16))"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 800
