"""Training: one loop, exact resume, checkpoints that are committed or do not exist, metrics in a run folder.

    config -> resolve -> Trainer.fit: batch -> gradients -> clip -> finite? -> optimizer -> log; evaluate; save; stop?

Names are loaded on first use, so that `danalab train --help` needs no torch. A name must not be that of a module here,
which takes its place as soon as anything imports it.
"""

from danalab.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
