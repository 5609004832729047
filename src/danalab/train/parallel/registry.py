"""The strategy of each --distributed-backend."""

from danalab.train.parallel.ddp import DDPStrategy
from danalab.train.parallel.fsdp import FSDPStrategy
from danalab.train.parallel.strategy import ParallelStrategy
from danalab.train.parallel.world import World
from danalab.train.parallel.zero import ZeROStrategy

STRATEGIES = {"single": ParallelStrategy, "ddp": DDPStrategy, "zero": ZeROStrategy, "fsdp": FSDPStrategy}


def make_strategy(world: World) -> ParallelStrategy:
    """The strategy of the world's layout; `danalab.train.parallel.diloco.setup` makes that of a DiLoCo worker."""
    return STRATEGIES[world.layout.backend](world)
