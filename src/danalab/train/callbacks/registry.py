"""The callbacks of a run. A new callback is a file with a `Callback` class and a line here."""

from importlib import import_module

from danalab.train.callbacks.base import Callback, CallbackContext

CALLBACKS: list[tuple[str | None, str]] = [
    # (the setting that turns it on, None: always on; module:class)
    (None, "danalab.train.callbacks.spikes:SpikeMonitor"),
    ("log_dynamics", "danalab.train.callbacks.dynamics:Dynamics"),
    ("log_dynamics", "danalab.train.callbacks.snr:SignalToNoise"),
    ("collect_tau_stats", "danalab.train.callbacks.tau:TauStatistics"),
    ("sample_prompts", "danalab.train.callbacks.samples:TextSamples"),
    ("profile", "danalab.train.callbacks.profiler:ProfilerTrace"),
    ("tensorboard", "danalab.train.callbacks.tensorboard:TensorBoardMirror"),
    ("wandb", "danalab.train.callbacks.wandb:WandbMirror"),
]
"""In the order in which they are called."""


def make_callbacks(context: CallbackContext) -> list[Callback]:
    """The callbacks that the run's settings ask for, on this rank."""
    found: list[Callback] = []
    for setting, path in CALLBACKS:
        if setting is None or getattr(context.spec.tracking, setting):
            module, _, name = path.partition(":")
            callback = getattr(import_module(module), name).build(context)
            found += [] if callback is None else [callback]
    return found
