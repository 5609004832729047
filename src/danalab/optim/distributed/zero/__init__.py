"""ZeRO-2: replicated parameters, sharded optimizer. `DistributedMuonAdamW` is all that a trainer needs."""

from danalab.optim.distributed.zero.optimizer import DistributedMuonAdamW

__all__ = ["DistributedMuonAdamW"]
