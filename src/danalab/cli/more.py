"""Verbs beside those of `app.py`."""

from danalab.cli.app import COMMANDS, Command

for _verb, _command in {
    "speedrun": Command(
        "start",
        "from text to a chat in one command: base, mid, sft, rl, scores, report",
        "danalab.cli.speedrun",
        trains=True,
    ),
    "chat": Command("use", "talk to a model in the terminal", "danalab.cli.chat"),
    "theory": Command(
        "more",
        "study small power-law models on which the theory can be computed; writes figures",
        "danalab.cli.theory",
    ),
    "slurm": Command(
        "more", "write and submit a job script that requeues until the run's last step", "danalab.cli.slurm"
    ),
}.items():
    COMMANDS.add(_verb, _command)
