"""A setting that smaller sizes tuned and larger ones leave out is named, in rows and in files."""

import pytest

from danalab.errors import UserError
from danalab.ladder.analysis import analyse
from danalab.ladder.plan import read_plan
from ladder.planted_horizons import plant_horizons

SMALL, LARGE = 7_000, 28_000


def ladder(small, large, opt="adamw"):
    """Rows whose small size tried the settings `small`, and whose large one had `large`."""
    rows = plant_horizons(sizes={SMALL: (1,), LARGE: (1,)})
    kept = []
    for row in rows:
        row["settings"]["opt"] = opt
        for i, own in enumerate(small if row["params"] == SMALL else [large]):
            kept.append({**row, "name": f"{row['name']}-{i}", "settings": {**row["settings"], **own}})
    return [row for row in kept if row["opt"] == "adamw"]


def betas(*values):
    return [{"optimizer_settings": {"betas": list(value)}} for value in values]


@pytest.mark.parametrize(
    ("large", "said"),
    [
        ({}, "betas is [0.9, 0.999] at 28,000 parameters; smaller sizes tuned it, over [0.9, 0.95], [0.9, 0.99]"),
        (betas((0.9, 0.98))[0], "betas is [0.9, 0.98] at 28,000"),
        (betas((0.9, 0.99))[0], None),
    ],
)
def test_rows_of_larger_sizes_at_another_value_are_noted(large, said):
    notes = [note for note in analyse(ladder(betas((0.9, 0.95), (0.9, 0.99)), large), n_bootstrap=0).notes
             if "smaller sizes tuned it" in note]  # fmt: skip
    assert len(notes) == (said is not None)
    assert all(said in note for note in notes)


def test_a_default_that_was_among_the_tuned_values_is_not():
    small = [{"kappa": 0.85}, {"kappa": 0.75}]
    notes = analyse(ladder(small, {}, "adana"), n_bootstrap=0).notes
    assert not [note for note in notes if "smaller sizes tuned it" in note]


def test_a_file_of_larger_sizes_gives_every_setting_of_the_smaller_ones(tmp_path):
    size = "sizes: [{d_model: 16, n_layers: 1, n_heads: 1}]\nfixed: {arch: gpt}\n"
    tuned = "opts: [adamw, adana]\ndials: {adamw: {betas: [[0.9, 0.95], [0.9, 0.99]]}, adana: {kappa: [0.85, 0.7]}}\n"
    (tmp_path / "small.yaml").write_text(tuned + size)
    large = tmp_path / "large.yaml"
    large.write_text("opts: [adamw]\nsmaller: small.yaml\n" + size)
    with pytest.raises(UserError, match=r"adamw has no betas, which small\.yaml tunes"):
        read_plan(large)
    for given in ("dials: {adamw: {betas: [[0.9, 0.99]]}}", "variants: {adamw: {opt: adamw, betas: [0.9, 0.99]}}"):
        large.write_text(f"opts: [adamw]\nsmaller: small.yaml\n{given}\n{size}")
        assert read_plan(large).opts == ("adamw",)
