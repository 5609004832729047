"""One rank of `--nproc N`: `python -m danalab.train.parallel.rank_main CONFIG.json PARENT`. See `launcher`."""

import ctypes
import json
import logging
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

from danalab.errors import FirstRankError, LostRankError, UserError, describe_os_error
from danalab.train.parallel.launcher import LOST_CODE
from danalab.train.system.signals import INTERRUPTED, ORDERLY, StopRequest, release_signals


def main(arguments: list[str]) -> int:
    """Train as a rank of the group that the environment describes; returns the exit code."""
    with StopRequest() as stop:  # before the imports below, which take seconds
        release_signals()
        if sys.platform.startswith("linux"):  # SIGTERM when the launcher dies
            set_parent_death_signal = 1
            ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
        if os.getppid() != int(arguments[1]):
            os._exit(1)
        return _train(Path(arguments[0]), stop)


def _train(config: Path, stop: StopRequest) -> int:
    from danalab.train.callbacks.console import log_to_stderr
    from danalab.train.job import run_training

    log_to_stderr()
    if os.environ["RANK"] != "0":
        logging.getLogger("danalab").setLevel(logging.ERROR)
    try:
        content = json.loads(config.read_text())
        module, _, name = content["kind"].partition(":")
        return run_training(getattr(import_module(module), name)(**content["settings"]), stop).exit_code
    except FirstRankError:
        return 2
    except (UserError, OSError) as error:
        reason = str(error) if isinstance(error, UserError) else describe_os_error(error)
        if reason is None:
            raise
        print("danalab: error: " + " ".join(reason.split()), file=sys.stderr)
        return 2
    except LostRankError:
        return LOST_CODE  # the launcher names the lost rank
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    if code not in ORDERLY:
        os._exit(code)  # threads may wait for dead ranks
    sys.exit(code)
