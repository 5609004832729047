"""`make coverage`: the page names what no fast test runs."""

from __future__ import annotations

from build_coverage import ROOT, page, ranges


def entry(statements: int, missing: list[int]) -> dict:
    return {"summary": {"num_statements": statements, "missing_lines": len(missing)}, "missing_lines": missing}


def test_rooms_are_summed_and_files_below_the_goal_are_listed_with_their_lines():
    report = {
        "totals": {"percent_covered": 93.75},
        "files": {
            "src/danalab/optim/a.py": entry(100, [3]),
            str(ROOT / "src" / "danalab" / "optim" / "core" / "b.py"): entry(20, [5, 6, 7, 9]),
            "src/danalab/errors.py": entry(0, []),
            "src/danalab_annexes/evals/harness.py": entry(10, [1, 2]),
        },
    }
    text = page(report)
    assert "**93.8%**" in text
    assert "| `optim` | 120 | 5 | 95.8% |" in text
    assert "| `danalab` | 0 | 0 | 100.0% |" in text
    assert "| `danalab_annexes` | 10 | 2 | 80.0% |" in text
    assert "| `optim/core/b.py` | 80% | 5-7, 9 |  |" in text
    assert "optim/a.py" not in text


def test_lines_that_follow_each_other_are_one_range():
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert ranges([]) == ""
