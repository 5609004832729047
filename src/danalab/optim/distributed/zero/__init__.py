"""ZeRO-2: replicated parameters with a sharded optimizer, `DistributedMuonAdamW`."""

from danalab.optim.distributed.zero.optimizer import DistributedMuonAdamW

__all__ = ["DistributedMuonAdamW"]
