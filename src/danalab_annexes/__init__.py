"""What only some runs need, as plug-ins: the core, `danalab`, imports none of it, and works without it.

A registry of the core that lacks a name loads the modules of its kind, which add to it (`danalab.plugins.load`).
"""

MODULES: dict[str, tuple[str, ...]] = {
    "architecture": ("architectures",),
    "back end": ("native_decoding",),
    "callback": ("statistics", "profiler", "trackers"),
    "command": (
        "speedrun.command",
        "chat.command",
        "commands.check",
        "commands.new",
        "commands.slurm",
        "theory.command",
    ),
    "constraint": ("json_constraint",),
    "data command": ("data.commands",),
    "data layout": ("data.arrays",),
    "data source": ("data.hub",),
    "distributed backend": ("diloco",),
    "endpoint": ("responses",),
    "evaluation": ("evaluations",),
    "executor": ("ladder.slurm",),
    "ladder command": ("ladder.commands",),
    "model format": ("gguf_file",),
    "optim command": ("optim.commands",),
    "procedure of a ladder": ("ladder.merged", "ladder.preregistration"),
    "reward": ("programs",),
    "study of a ladder": ("ladder.studies",),
    "study": ("theory.studies",),
    "task": ("hub_tasks", "manners"),
    "weight format": ("huggingface.convert",),
}
"""Kind of a registry (`Registry.kind`) -> modules of this package that add to it when they are imported."""
