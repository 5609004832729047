"""DiLoCo: workers train independently for H steps, then an outer step averages their changes.

    worker k:   w_k <- theta;  H steps of any optimizer on its part of the data
    g     = mean over the present workers of (theta - w_k)
    m     <- mu m + g
    theta <- theta - lr (g + mu m)                               Nesterov momentum, as in torch.optim.SGD

Workers only share a folder: each writes its weights there, waits for the others, and computes the outer step itself,
bit for bit like the others. A worker that dies, hangs or is late is left out of the mean.

Source: Douillard et al. 2023, arXiv 2311.08105.
"""

from danalab.train.parallel.diloco.exchange import Exchange
from danalab.train.parallel.diloco.outer import OuterStep
from danalab.train.parallel.diloco.worker import Worker

__all__ = ["Exchange", "OuterStep", "Worker"]
