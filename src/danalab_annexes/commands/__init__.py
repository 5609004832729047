"""Commands of annexes; here are those that have no room: a check before a launch, a starter file, cluster jobs."""

from danalab.cli.app import COMMANDS, Command

_HERE = "danalab_annexes"
for _verb, _command in {
    "speedrun": Command(
        "start",
        "from text to a chat in one command: base, mid, sft, rl, scores, report",
        f"{_HERE}.speedrun.command",
        trains=True,
    ),
    "check": Command(
        "train",
        "check a run before a long launch: data, loss, memory, resume, throughput",
        f"{_HERE}.commands.check",
        trains=True,
    ),
    "chat": Command("use", "talk to a model in the terminal", f"{_HERE}.chat.command"),
    "new": Command(
        "more", "write a starter file for your own optimizer, with its test", f"{_HERE}.commands.new", light=True
    ),
    "theory": Command(
        "more",
        "study small power-law models on which the theory can be computed; writes figures",
        f"{_HERE}.theory.command",
    ),
    "slurm": Command(
        "more", "write and submit a job script that requeues until the run's last step", f"{_HERE}.commands.slurm"
    ),
}.items():
    COMMANDS.add(_verb, _command)
