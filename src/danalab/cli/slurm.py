"""Write a SLURM job script that requeues until a run's last step, and submit it.

danalab slurm --account ACCOUNT --gpus 4 -- --arch enoki --opt adana --heads 12
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from danalab.errors import UserError
from danalab.train.config.flags import Answer, JsonFlags, Positional, parse, setting
from danalab.train.slurm import Resources, SlurmJob, submit


@dataclass(frozen=True, kw_only=True)
class Flags(JsonFlags, Resources):
    """Settings of `danalab slurm`."""

    train: Positional[tuple[str, ...]] = setting((), "Flags of danalab train, after --.")
    job_name: str | None = setting(None, "Default: the run's name.")
    log_dir: Path = setting(Path("slurm"), "Folder of scripts and logs.")
    dry_run: bool = setting(False, "Print the script; write and submit nothing.")


def run(flags: Flags) -> Answer:
    """Write a SLURM job script that requeues until a run's last step, and submit it; the run's flags follow --."""
    if not flags.train:
        raise UserError("no run: give flags of danalab train after --")
    name, words = _checked(list(flags.train), flags.ranks)
    job = SlurmJob(flags.job_name or name, [words], flags, flags.log_dir)
    if flags.dry_run:
        return Answer({"script": job.text()}, [job.text().rstrip("\n")])
    script = job.write()
    answer = submit(script)
    print(f"{answer}: {script}, logs in {flags.log_dir}", file=sys.stderr)
    return Answer({"script": str(script), "runs": [name], "sbatch": answer}, [])


def _checked(words: list[str], ranks: int) -> tuple[str, list[str]]:
    """(name of the run, by its flags alone: the same in every job; its flags), checked before the job is submitted."""
    from danalab.train.config.flags import names_of
    from danalab.train.config.train_config import TrainConfig, digest_of

    config: TrainConfig = parse(TrainConfig, words, "danalab train")
    if config.nproc not in (None, 1):
        raise UserError(
            f"--nproc {config.nproc}: under SLURM the ranks are started by srun; give --gpus and --nodes"
        )
    if ranks > 1 and config.distributed_backend is None:
        words = [*words, "--distributed-backend", "fsdp" if config.expert_parallel else "ddp"]
    name = config.name or (config.run_dir.name if config.run_dir else None)
    if name is None:
        size = f"h{config.heads}" if config.heads is not None else config.size or f"d{config.d_model}"
        digest = digest_of(config, names_of(type(config), "run", "input", "data"))
        name = "-".join(filter(None, [config.arch, config.opt, size, digest]))
        words = [*words, "--name", name]
    return name, words


VERBS = {"slurm": (Flags, run)}
