"""Check your own solution of an exercise.

python examples/exercises/check.py FILE        # it defines LogLion, VisionTransformer or Sorting
"""

import argparse
import runpy
from pathlib import Path

import torch

from danalab.chat.rewards import Scorer
from danalab.chat.tasks import make_task
from danalab.optim import build_optimizer, parameter_kinds


def log_lion(build, file):
    """Five steps are those of the formula in float64, without decay, then with it; the state is saved and loaded
    after each."""
    for omega in (None, 4.0):
        draw = torch.Generator().manual_seed(0)
        theta = torch.randn(7, generator=draw, dtype=torch.float64)
        settings = {"lr": 0.01, "omega": omega, "horizon": omega and 100}
        p, m = torch.nn.Parameter(theta.clone()), torch.zeros_like(theta)
        optimizer = build([p], **settings)
        for t in range(1, 6):
            g = torch.randn(7, generator=draw, dtype=torch.float64)
            kept = 1 - min(omega / (10 + t), 0.01) if omega else 1.0
            theta = kept * (theta - 0.01 * torch.sign(m + 0.1 * (g - m)))
            m = m + 8 / (8 + t) * (g - m)
            p.grad = g
            optimizer.step()
            what = (
                "decay k(t)"
                if omega
                else "direction"
                if t == 1
                else "average m or its share in the direction"
            )
            now, right = (", ".join(f"{x:.5g}" for x in values.tolist()) for values in (p, theta))
            off = f"off by up to {(p - theta).abs().max():.1e}"
            said = f"step {t}: wrong {what}: parameters are [{now}], not [{right}] ({off})"
            assert torch.allclose(p, theta, rtol=1e-12, atol=0), said
            saved = optimizer.state_dict()
            optimizer = build([p], **settings)
            optimizer.load_state_dict(saved)


def vision_transformer(build, file):
    """Only matrices of the blocks are orthogonalised."""
    model = build()
    kinds, shapes = parameter_kinds(model), {name: p.ndim for name, p in model.named_parameters()}
    wrong = [name for name, ndim in shapes.items() if ndim > 2 and kinds[name] != "embedding"]
    assert not wrong, f"{', '.join(wrong)}: patches, positions and class token must be embeddings"
    assert "head" in kinds.values(), "no parameter is the head"
    for group in build_optimizer("muon", model, lr=0.02).param_groups:
        assert group["kind"] != "matrix" or all(p.ndim == 2 for p in group["params"]), (
            "no matrix has two dimensions"
        )


def sorting(build, file):
    """Problems are the same everywhere, checkable, and those of the test are never trained on."""
    address = f"{Path(file).resolve()}:Sorting:letters=4"
    (train, _), (again, _), (test, _) = (
        make_task(address),
        make_task(address),
        make_task(address, split="test"),
    )
    assert train[5] == again[5], "problem 5 differs from one start to the next"
    both = {problem.question for problem in train[:1000]} & {problem.question for problem in test[:1000]}
    assert not both, f"in training and in the test: {both.pop()}"
    for problem in test[:20]:
        letters = problem.answer.split()
        assert letters == sorted(letters), f"{problem.question} {problem.answer}: not sorted"
        assert Scorer()(problem, problem.answer) == 1, (
            f"{problem.question} {problem.answer}: the answer must score 1"
        )
        assert Scorer()(problem, "z z z") == 0, f"{problem.question} z z z: a wrong answer must score 0"


CHECKS = {"LogLion": log_lion, "VisionTransformer": vision_transformer, "Sorting": sorting}


def check(file):
    """The names in a file that were checked; AssertionError: what is wrong."""
    own = runpy.run_path(str(file))
    found = [name for name in CHECKS if name in own]
    assert found, f"{file} defines none of {', '.join(CHECKS)}"
    for name in found:
        CHECKS[name](own[name], file)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    given = parser.parse_args().file
    if not given.is_file():
        parser.error(f"{given}: no such file")
    try:
        print(f"right: {', '.join(check(given))}")
    except Exception as error:  # a student's file may raise anything
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise SystemExit(f"wrong: {kind}{error}") from None
