"""docs/optimizer-capabilities.md: the parallel modes of each optimizer, from measurements."""

from collections.abc import Mapping
from typing import Any

from danalab.optim.distributed import MODES
from danalab.optim.registry import OptimizerSpec, list_optimizers, optimizer_spec

Cell = Mapping[str, Any]
"""{"refused": reason}, or {"step": difference, "reload": difference} relative to the largest update."""

EPSILON = 1e-5
"""Largest difference that counts as the same step."""

HEAD = """# Optimizers in parallel modes, measured

For those who train on several processes and ask whether their optimizer is exact there.

Every optimizer of the registry in every parallel mode, on gloo ranks against one process; written by
`python bench/optim_capabilities.py`, checked by `tests/distributed/test_optim_capabilities.py`.

- **bitwise**: three steps, and two more after a checkpoint that another number of ranks reads, give the same bits as
  one undisturbed process. Gradients have few bits, so that their averages are exact and only the optimizer is
  compared.
- a number: the largest difference of any parameter, relative to that parameter's largest update; at most 1e-5.
- **no**: refused before training starts; the reason is below the table.

Ranks that write the checkpoint and ranks that read it: {ranks}. It uses
`torch.distributed.checkpoint` and its `get_optimizer_state_dict` / `set_optimizer_state_dict`. Sizes are odd and even
(65x33, 32x16, 3x40, ...); one tensor has fewer rows than ranks.

"""

TAIL = """
## Updates of sharded parameters

`build_optimizer` selects the method, also in your own trainer (`fully_shard(model)`, then
`build_optimizer("soap", model, lr=...)`):

- **local shards**: an elementwise update, so every rank updates its shard in place, without communication. State is
  sharded like the parameter.
- **whole, at an owner**: an update that needs a whole matrix or tensor (preconditioners, factored moments, trust
  ratios, norms). The gradient is gathered to one rank, the update is computed there and sent back; owners are balanced
  by cost. State stays with the owner and is sharded only in checkpoints.
- **whole matrices by turns**: the same for the orthogonalised momentum of this package, whose state stays sharded.
- **local shards, sums over ranks**: a statistic over all parameters is a sum, which is reduced over ranks.

`zero` is `DistributedMuonAdamW`: parameters are replicated, each rank owns slices or whole parameters. A sharded run
with an optimizer that cannot be exact is refused by `danalab.optim.distributed.require_supported(spec, mode)`.

Checkpoints hold DTensors for sharded state and are read by any number of ranks, in any mode. `state_dict()` is
collective if state is owned (call it on all ranks). It is complete before the first step; the key `unstepped` of each
group lists the parameters that have taken no step. The dummy step of checkpoint helpers (zero gradients, learning rate
0) changes no parameter and no step count of any optimizer.

## Limits of these measurements

They are in float32 on CPUs, with gloo. Orthogonalisation in bfloat16, the default on GPUs, amplifies rounding: if its
input differs in the last bit, its output differs by percents of its largest entry. In every mode here the same
matrices are computed from the same bits, so this appears only where gradients are summed in another order.
"""


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
    ranks = results["ranks"]
    both = ", ".join(f"{before} and {after} (`{mode}`)" for mode, (before, after) in ranks.items())
    lines = [f"| optimizer | on sharded parameters | {' | '.join(MODES)} |", f"|---|---|{'---|' * len(MODES)}"]
    reasons: dict[str, list[str]] = {}
    for name in list_optimizers():
        cells = results["optimizers"][name]
        lines.append(f"| `{name}` | {how(optimizer_spec(name))} | {' | '.join(written(cells[m]) for m in MODES)} |")
        for mode in MODES:
            if "refused" in cells[mode]:
                reasons.setdefault(cells[mode]["refused"], []).append(f"`{name}` with `{mode}`")
    refused = [f"- {', '.join(who)}: {why}." for why, who in reasons.items()]
    about = ["", "Refused:", "", *refused] if refused else []
    return HEAD.format(ranks=both) + "\n".join([*lines, *about]) + "\n" + TAIL
