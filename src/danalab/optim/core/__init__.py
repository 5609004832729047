"""The parts that every optimizer is built from: base classes, rules, state, settings and parameter kinds."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
