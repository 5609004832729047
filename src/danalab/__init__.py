"""danalab: a language-model pre-training lab around logarithmic-time optimizers."""

import sys

__version__ = "0.2.0"


class _MovedModules:
    """Finder of modules by the paths that they had before they moved (`danalab.moved`)."""

    @staticmethod
    def find_spec(name: str, *_: object):
        if not name.startswith("danalab."):
            return None
        from danalab.moved import find_spec

        return find_spec(name)


sys.meta_path.append(_MovedModules)  # the last: it costs nothing until an ordinary import fails
