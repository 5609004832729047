"""Stand-ins for SLURM's commands: jobs run here, one after another, and what they queue is counted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

SBATCH = """
printf '%s\\n' "$*" >>"$QUEUE"
script=${!#}
name=$(sed -n 's/^#SBATCH --job-name=//p' "$script")
tasks=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
if [[ -n $tasks ]]; then seq 0 "$tasks"; else echo N/A; fi | sed "s|.*|$name & $script|" >>"$QUEUE.tasks"
echo "Submitted batch job 7"
"""
SCONTROL = """
[[ $1 == requeue ]] || exit 1
[[ ${REQUEUE_REFUSED:-} != yes ]] || exit 1
echo "requeue $2" >>"$QUEUE"
echo "$2" >>"$QUEUE.requeued"
"""
SRUN = """
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
SQUEUE = """
[[ "$*" == *%j* ]] || { echo 1:00:00; exit; }
cut -d ' ' -f 1,2 "$QUEUE.tasks" 2>/dev/null || true
"""
# `danalab train`: makes up to 4 steps of 10 a job, as with --iterations-to-run 4, and is preempted where told.
TRAIN = """
step=$(cat steps 2>/dev/null || echo 0)
job=$(cat jobs 2>/dev/null || echo 0)
echo $((job + 1)) >jobs
echo "$*" >>arguments
[[ ${FAIL:-} != yes ]] || exit 2
((job >= ${KILLED_JOBS:-0})) || exit 143
status=stopped code=0
if [[ ${PREEMPTED_JOB:-} == "$job" ]]; then
    step=$((step + ${PREEMPTED_AFTER:-1})) status=interrupted code=85
else
    step=$((step + ${STEPS_A_JOB:-4}))
fi
((step < 10)) || { step=10 status=finished; }
echo $step >steps
echo '{"status": "'$status'", "run": "runs/x", "step": '$step', "iterations": 10, "train/loss": 2.5}'
exit $code
"""


class Cluster:
    """A queue of one job at a time, in a folder of its own."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.folder, self.queue = folder, folder / "queue"
        self.tasks = folder / "queue.tasks"
        self.bin = folder / "bin"
        self.bin.mkdir()
        commands = {"sbatch": SBATCH, "scontrol": SCONTROL, "srun": SRUN, "squeue": SQUEUE, "danalab": TRAIN}
        for name, text in commands.items():
            (self.bin / name).write_text(f"#!/usr/bin/env bash\n{text}")
            (self.bin / name).chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "DANALAB_"))}
        path = f"{self.bin}:{kept['PATH']}"
        return {**kept, "PATH": path, "QUEUE": str(self.queue), "DANALAB": str(self.bin / "danalab"), **more}

    def run_tasks(self, **more: str) -> list[int]:
        """Run the tasks of the arrays that were submitted, each until it is not queued again; their exit codes."""
        tasks = self.tasks.read_text().splitlines()
        codes = []
        for task in tasks:
            _, index, script = task.split(" ", 2)
            array = {} if index == "N/A" else {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": index}
            codes.append(self.run(["bash", script], **array, **more)[1])
        self.tasks.write_text(
            "".join(task + "\n" for task in self.tasks.read_text().splitlines()[len(tasks) :])
        )
        return codes

    def run(
        self,
        command: list[str],
        during: Callable[[subprocess.Popen[str], int], None] = lambda *_: None,
        **more: str,
    ) -> tuple[int, int, str]:
        """Run a job and all that it queues: (jobs, last exit code, what was said).

        Args:
            during: called with the process of each job and its number, while it runs.
        """
        said, jobs, code = "", 0, 0
        pending = True
        while pending:
            self.queue.unlink(missing_ok=True)
            slurm = {
                "SLURM_JOB_ID": "7",
                "SLURM_RESTART_COUNT": str(jobs),
                "SLURM_SUBMIT_DIR": str(REPOSITORY),
            }
            with subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment(**slurm, **more),
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                during(process, jobs)
                said += process.communicate()[1]
            jobs, code = jobs + 1, process.returncode
            pending = self.queue.exists() and jobs < 20
        return jobs, code, said
