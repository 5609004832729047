"""docs/optimizer-capabilities.md: the parallel modes of each optimizer, from measurements."""

from collections.abc import Mapping
from typing import Any

from danalab.optim.distributed import MODES
from danalab.optim.registry import OptimizerSpec, list_optimizers, optimizer_spec

Cell = Mapping[str, Any]
"""{"refused": reason}, or {"step": difference, "reload": difference} relative to the largest update."""

EPSILON = 1e-5
"""Largest difference that counts as the same step."""

HEAD = """# Optimizers in parallel modes

For those who train on several processes and ask whether their optimizer is exact there.

**Every optimizer of the registry gives the same bits in every parallel mode as in one process, with these
exceptions:**

{exceptions}

This holds for one process, DDP, ZeRO, FSDP2, and FSDP2 with tensor parallelism. The test takes three steps, writes a
checkpoint, lets another number of ranks read it, and takes two more. It runs in float32 on CPUs with gloo.
On GPUs the orthogonalisation in bfloat16 amplifies rounding where gradients are summed in another order.
"""

TAIL = """
## How sharded parameters are updated

`build_optimizer` selects the method, also in your own trainer (`fully_shard(model)`, then `build_optimizer("soap",
model, lr=...)`):

| method | what happens | of |
| --- | --- | --- |
{methods}

`zero` is `DistributedMuonAdamW`: parameters are replicated, and each rank owns slices or whole parameters.
`danalab.optim.distributed.require_supported(spec, mode)` refuses a sharded run that cannot be exact.

Checkpoints hold DTensors for sharded state. Any number of ranks reads them, in any mode. `state_dict()` is collective
if state is owned: call it on all ranks. It is complete before the first step. The key `unstepped` of each group lists
the parameters that have taken no step. The dummy step of checkpoint helpers (zero gradients, learning rate 0) changes
no parameter and no step count.

`python bench/optim_capabilities.py` measures all of them in a minute and writes this page.
"""

METHODS = {
    "local shards": "each rank updates its shard in place, without communication",
    "local shards, sums over ranks": "the same, with one sum over ranks for a statistic of all parameters",
    "whole, at an owner": "the gradient is gathered at one rank, which computes the update and keeps the state",
    "whole matrices by turns": "the same, but the state stays sharded",
}
"""How an optimizer updates DTensor parameters."""


def how(spec: OptimizerSpec) -> str:
    """How an optimizer updates DTensor parameters."""
    if spec.elementwise:
        return "local shards"
    if spec.sums_over_ranks:
        return "local shards, sums over ranks"
    if not spec.per_parameter:
        return "-"
    return "whole matrices by turns" if getattr(spec.build, "takes_dtensors", False) else "whole, at an owner"


def written(cell: Cell) -> str:
    """A cell of the table."""
    if "refused" in cell:
        return "no"
    worst = max(cell["step"], cell["reload"])
    return "bitwise" if worst == 0 else f"{worst:.0e}"


def render(results: Mapping[str, Any]) -> str:
    """The page.

    Args:
        results: {"ranks": {mode: [before, after]}, "optimizers": {name: {mode: cell}}}.
    """
    methods: dict[str, list[str]] = {}
    lines = []
    for name in list_optimizers():
        cells = results["optimizers"][name]
        methods.setdefault(how(optimizer_spec(name)), []).append(name)
        refused: dict[str, list[str]] = {}
        for mode in MODES:
            if "refused" in cells[mode]:
                refused.setdefault(cells[mode]["refused"], []).append(f"`{mode}`")
            elif written(cells[mode]) != "bitwise":
                lines.append(f"- `{name}` differs with `{mode}` by {written(cells[mode])} of the largest update.")
        lines += [f"- `{name}` is refused with {', '.join(modes)}: {why}." for why, modes in refused.items()]
    rows = [f"| {method} | {what} | {_few(methods.get(method, []))} |" for method, what in METHODS.items()]
    return HEAD.format(exceptions="\n".join(lines)) + TAIL.format(methods="\n".join(rows))


def _few(names: list[str]) -> str:
    return "all others" if len(names) > len(list_optimizers()) / 2 else ", ".join(f"`{name}`" for name in names)
