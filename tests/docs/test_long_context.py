"""The numbers of the page on long contexts are those of the files with results."""

from __future__ import annotations

from pathlib import Path

from danalab_bench.pages import benchmark

PAGE = (Path(__file__).parents[2] / "docs" / "long-context.md").read_text()


def test_the_table_of_costs_is_the_measured_one():
    speed = benchmark("resonance_cpu")["speed"]
    for ours, theirs in zip(speed["resonance"]["rows"], speed["attention"]["rows"], strict=True):
        start = f"| {ours['tokens']:,} | {ours['step_seconds']:.3f} | {theirs['step_seconds']:.3f} |"
        decoded = f"| {1e3 * ours['decode_seconds']:.2f} / {1e3 * theirs['decode_seconds']:.2f} |"
        row = next(line for line in PAGE.splitlines() if line.startswith(start))
        assert decoded in row
    slopes = [f"{speed[name]['slope_from_4096']:.2f}" for name in ("resonance", "attention")]
    assert f"| exponent, 4,096 to 32,768 | {slopes[0]} | {slopes[1]} |" in PAGE
    assert f"a step is {speed['faster_at_longest']['ratio']:.1f} times as fast" in PAGE


def test_the_losses_on_wikitext_are_the_measured_ones():
    found = benchmark("resonance_wikitext2")
    labels = {"resonance": "resonance", "no mixer": "without its mixer", "attention": "attention"}
    for name, label in labels.items():
        model, tried = found["models"][name], found["trials"][name]
        row = next(
            line for line in PAGE.splitlines() if line.startswith(f"| {label}") and f"{model['params']:,}" in line
        )
        trials = " / ".join(f"{loss:.3f}" for loss in tried.values())
        assert f"| {trials} | {model['lr']:g} | {model['mean']:.3f} | {model['sd']:.3f} |" in row
        if name != "resonance":
            over = found["resonance_minus"][name]
            assert f"| {over['mean']:+.3f} ({over['interval'][0]:+.3f} to {over['interval'][1]:+.3f}) |" in row
    assert f"{found['tokens'] / 1e6:.2f} M tokens" in PAGE
    assert {len(model["runs"]) for model in found["models"].values()} == {3}


def test_the_losses_at_equal_tokens_and_time_are_the_measured_ones():
    learned = benchmark("resonance_learning_cpu")["learning"]
    assert f"| model | after {learned['tokens']:,} tokens | after {learned['seconds']:.0f} s |" in PAGE
    for name, one in learned["models"].items():
        losses = f"{one['loss_at_equal_tokens']:.3f} | {one['loss_at_equal_time']:.3f}"
        assert f"| {name} | {losses} | {one['tokens_per_second']:,.0f} |" in PAGE
