"""Optimizers as a library: the Dana family, schedules, and a registry. Needs torch and nothing else.

Names are imported when first used, so that `danalab.optim.schedules` does not load torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
