"""What only some runs need, as plug-ins: the core, `danalab`, imports none of it, and works without it.

A registry of the core that lacks a name loads the modules of its kind, which add to it (`danalab.plugins.load`).
"""

MODULES: dict[str, tuple[str, ...]] = {
    "architecture": ("models.architectures",),
    "back end": ("inference.native_decoding",),
    "callback": ("train.statistics", "train.profiler", "train.trackers"),
    "command": ("commands",),
    "constraint": ("inference.json_constraint",),
    "data command": ("data.commands",),
    "data layout": ("data.arrays",),
    "data source": ("data.hub",),
    "distributed backend": ("train.diloco",),
    "endpoint": ("serve.responses",),
    "evaluation": ("evals.evaluations",),
    "executor": ("ladder.slurm",),
    "ladder command": ("ladder.commands",),
    "model format": ("models.gguf_file",),
    "moved module": ("moved",),
    "optim command": ("optim.commands",),
    "procedure of a ladder": ("ladder.merged", "ladder.preregistration"),
    "reward": ("chat.programs",),
    "study of a ladder": ("ladder.studies",),
    "study": ("theory.studies",),
    "task": ("chat.hub_tasks", "chat.manners"),
    "weight format": ("models.huggingface.convert",),
}
"""Kind of a registry (`Registry.kind`) -> modules of this package that add to it when they are imported."""
