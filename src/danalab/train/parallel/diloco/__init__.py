"""DiLoCo: workers that train by themselves for H steps at a time, and an outer step on what they found.

    worker k:   w_k <- theta;  H steps of any optimizer on its own part of the data
    g     = mean over the workers that are there of (theta - w_k)
    m     <- mu m + g
    theta <- theta - lr (g + mu m)                               Nesterov's momentum, as torch.optim.SGD has it

Workers need no connection but a folder that all of them see: each leaves its weights there, waits for the others, and
makes the outer step by itself, all to the same last bit. One that dies, hangs or comes late is left out of the mean.

Source: Douillard et al. 2023, arXiv 2311.08105.
"""

from danalab.train.parallel.diloco.exchange import Exchange
from danalab.train.parallel.diloco.outer import OuterStep
from danalab.train.parallel.diloco.worker import Worker

__all__ = ["Exchange", "OuterStep", "Worker"]
