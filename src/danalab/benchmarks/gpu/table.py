"""A row of each section as a line of text. No torch."""

from collections.abc import Mapping
from typing import Any


def line(section: str, row: Mapping[str, Any]) -> str:
    """A row for people."""
    if "error" in row:
        words = f"failed: {row['error']}"
    else:
        words = {
            "optim": _optim,
            "train": _train,
            "resonance": _resonance,
            "decode": _decode,
            "checkpoint": _checkpoint,
        }[section](row)
    return f"  {row['task']:<32} {words}"


def _optim(row: Mapping[str, Any]) -> str:
    words = [f"{row['ms']['median']:.3f} ms", f"{row['ratio']['median']:.2f} x torch's fused AdamW"]
    if row.get("target"):
        words.append(f"aim {row['target']:.2f}")
    if "gb_per_s" in row:
        words.append(f"{row['gb_per_s']:,.0f} GB/s, {row['share_of_copy']:.0%} of a copy")
    if "peer" in row:
        words.append(f"{row['ratio_to_peer']['median']:.2f} x {row['peer']}")
    return ", ".join(words)


def _train(row: Mapping[str, Any]) -> str:
    mfu = "no MFU: the peak is not known" if row["mfu"] is None else f"MFU {row['mfu']:.1%}"
    return (
        f"{row['tokens_per_second']:,.0f} tokens/s, {mfu}, {row['memory_gib']:.1f} GiB, {row['params'] / 1e6:.0f}M"
        " parameters"
    )


def _resonance(row: Mapping[str, Any]) -> str:
    ours, theirs = row["resonance"]["step_seconds"], row["attention"]["step_seconds"]
    return f"resonance {1e3 * ours:.1f} ms, attention {1e3 * theirs:.1f} ms: {theirs / ours:.2f} x as fast"


def _decode(row: Mapping[str, Any]) -> str:
    return (
        f"{row['tokens_per_second']:,.0f} tokens/s, {row['milliseconds_per_step']:.2f} ms a step,"
        f" weights read at {row['weights_gb_per_s']:,.0f} GB/s"
    )


def _checkpoint(row: Mapping[str, Any]) -> str:
    seconds, against = row["seconds"], row["ratios"]
    return (
        f"{row['gib']:.2f} GiB: training held up {seconds['held up']['median']:.3f} s,"
        f" {against['held up / torch.save']['median']:.2f} of torch.save; committed after"
        f" {seconds['committed']['median']:.2f} s"
    )
