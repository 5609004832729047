"""What a job goes on from: nothing, the newest valid checkpoint of its folder, or one that was named.

A run is its settings: a folder that was made by others is refused, with the settings that differ.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from danalab.errors import UserError
from danalab.files import read_json, write_atomically
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.store import COMMIT, META, CheckpointStore, DamagedCheckpointError, PassedOver, verify
from danalab.train.config.fields import flag
from danalab.train.config.run_spec import RunSpec, recorded_dtype
from danalab.train.config.train_config import MECHANICS, TrainConfig
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.run.metrics import read_rows
from danalab.train.system.provenance import versions
from danalab.train.system.rng import random_state

if TYPE_CHECKING:
    from danalab.data import Dataset
    from danalab.train.trainer import Trainer

log = logging.getLogger(__name__)

WITHOUT_FLAG = ("norm", "norm_eps", "rope_theta", "rotary_dim", "residual_scale")
"""What decides a model's function, shows in no weight's name or shape, and cannot be asked for by a flag."""


@dataclass
class ResumePoint:
    """Where to go on from."""

    checkpoints: list[Path]
    """Candidates, best first. The first verifies; the others are for the case that it cannot be read after all."""
    own: bool
    """Whether they are the run's own."""
    step: int
    finished: bool = False
    """Nothing is left to be done."""
    history: Path | None = None
    """Metrics of another run whose rows up to `step` led here."""

    def load(self, trainer: Trainer, world: World = World.single()) -> None:  # noqa: B008 - frozen
        """Put the trainer where the best candidate that all ranks can read left off. Collective.

        Raises:
            UserError: none can be read.
        """
        reasons = []
        for place, path in enumerate(self.checkpoints):
            meta, reason = {}, None
            try:
                if place and world.is_main:
                    verify(path)
                meta = read_json(path / META)
                # An imported model has weights, and no past.
                optimizer = None if meta.get("imported") else trainer.driver.optimizer
                tensors.read(path, trainer.model, optimizer, meta.get("optimizer"), keep_settings=not self.own)
            except UserError as error:
                reason = str(error)
            found = [text for text in world.gather(reason) if text is not None]
            if found:
                if world.is_main:
                    log.warning("passed over %s", found[0])
                reasons.append(found[0])
                if self.own and meta.get("step") is not None:
                    trainer.saver.store.damaged.add(meta["step"])
                continue
            if not meta.get("imported"):
                trainer.restore({**meta, "random": random_state_of(meta, world)})
                trainer.step = trainer.strategy.restore(path, meta.get("sharing"), trainer.step, own=self.own)
            if self.own:
                trainer.saver.committed = trainer.step
            if world.is_main:
                log.info("goes on from %s", path)
                if self.history is not None:
                    copy_rows(self.history, trainer.logbook.metrics_file, trainer.step)
            return
        raise UserError("; ".join(reasons))


def random_state_of(meta: dict[str, Any], world: World) -> dict[str, Any]:
    """The generators' states that this rank goes on with.

    Its own where as many ranks wrote the checkpoint. Where the number has changed, rank 0 goes on with rank 0's, and
    the others with what they were seeded with; the order of the data does not depend on them.
    """
    states: list[dict[str, Any]] = meta.get("random_by_rank") or [meta["random"]]
    if len(states) == world.size:
        return states[world.rank]
    return states[0] if world.is_main else random_state()


def run_record(
    resolved: RunSpec,
    dataset: Dataset,
    device: torch.device,
    world: World = World.single(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """What config.json says about a run."""
    return {
        **resolved.as_dict(),
        "dataset": {
            "path": dataset.location,
            "fingerprint": dataset.fingerprint,
            "tokens": dataset.n_tokens,
            "tokenizer": dataset.tokenizer_name,
        },
        "world_size": world.processes,
        "parallel": {"backend": world.layout.backend, **world.layout.shape(world.processes)},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def agree_on_resume_point(
    resolved: RunSpec, dataset: Dataset, folder: RunFolder, world: World
) -> tuple[RunSpec, ResumePoint | None]:
    """`choose_resume_point` by rank 0, which has the lock and verifies; all ranks go on from the same. Collective.

    Raises:
        UserError: on all ranks, see `choose_resume_point`.
    """
    return world.compute_on_rank0(lambda: choose_resume_point(resolved, dataset, folder))


def choose_resume_point(resolved: RunSpec, dataset: Dataset, folder: RunFolder) -> tuple[RunSpec, ResumePoint | None]:
    """Decide what to go on from; the folder is locked. Also takes up an earlier job's extension of the run, and what no
    flag says of the model.

    Raises:
        UserError: the folder holds another run, or checkpoints that `--no-auto-resume` protects, or nothing usable.
    """
    resolved, source = _choose(resolved, dataset, folder)
    return (resolved if source is None else _with_function_of(source, resolved)), source


def _with_function_of(source: ResumePoint, resolved: RunSpec) -> RunSpec:
    """The run with the settings of the checkpoint's model that no flag has: imported ones may have other than ours."""
    ours, theirs = resolved.model.as_dict(), read_json(source.checkpoints[0] / META).get("model") or {}
    if theirs.get("arch") != ours["arch"]:
        return resolved  # the weights will not fit, and say so
    taken = {name: theirs[name] for name in WITHOUT_FLAG if name in theirs and theirs[name] != ours[name]}
    if not taken:
        return resolved
    log.info("%s: as in %s", ", ".join(f"{name} {value}" for name, value in taken.items()), source.checkpoints[0])
    return replace(resolved, model=replace(resolved.model, **taken))


def _choose(resolved: RunSpec, dataset: Dataset, folder: RunFolder) -> tuple[RunSpec, ResumePoint | None]:
    config = resolved.config
    folder.store.require_writable()
    wanted = None if config.resume_from is None else _step_folder(config.resume_from)
    if wanted is not None and config.auto_resume and _has_begun_from(wanted, folder):
        log.info("%s has checkpoints of its own: goes on from those, not from %s", folder.path, wanted)
        wanted = None
    named = None if wanted is None else _named(wanted)
    rewinds = named is not None and named.parent.resolve() == folder.store.folder.resolve()
    if folder.config_file.is_file():
        resolved = _require_same_run(resolved, dataset, folder)
        config = resolved.config
    committed = folder.store.steps()
    if committed and not config.auto_resume and not rewinds:
        raise UserError(
            f"{folder.path}: has checkpoints up to step {committed[-1]} and --no-auto-resume was given; "
            "let it resume, or take another --run-dir"
        )
    folder.store.clean()
    if rewinds and named is not None:
        verify(named)
        source = ResumePoint([named], own=True, step=_step_of(named))
        for path in folder.store.set_aside_after(source.step):
            log.warning("going back to step %d: a later checkpoint was renamed to %s", source.step, path)
        return resolved, source
    if committed:
        source = _newest(folder.store, own=True)
        summary = folder.read_summary()
        source.finished = source.step >= resolved.iterations and (summary or {}).get("status") == "finished"
        return resolved, source
    if named is not None:
        return resolved, _fork(named)
    return resolved, None


def _has_begun_from(wanted: Path, folder: RunFolder) -> bool:
    """Whether the folder has checkpoints that come after `wanted`: a command that is started again goes on.

    After a checkpoint of another run all of the folder's are; after one of the folder's own, those that the last job
    left, if it was told to go back there and did not finish.
    """
    if not folder.store.steps():
        return False
    if wanted.parent.resolve() != folder.store.folder.resolve():
        return True
    if not folder.config_file.is_file() or (folder.read_summary() or {}).get("status") == "finished":
        return False
    before = folder.read_config()["config"].get("resume_from")
    return before is not None and _step_folder(Path(before)) == wanted


def _step_folder(path: Path) -> Path:
    """The checkpoint's folder where a file of it is named, as other trainers' checkpoints are."""
    return path.parent if path.is_file() and (path.parent / COMMIT).is_file() else path


def _newest(store: CheckpointStore, own: bool) -> ResumePoint:
    passed: list[PassedOver] = []

    def report(bad: PassedOver) -> None:
        passed.append(bad)
        log.warning("passed over %s", bad)

    best = next(store.usable(report), None)
    if best is None:
        raise UserError(
            f"{store.folder}: no checkpoint can be used ({'; '.join(map(str, passed)) or 'there is none'}); "
            "to start anew, move the run folder away or take another --run-dir"
        )
    older = [store.path(step) for step in reversed(store.steps()) if step < _step_of(best)]
    return ResumePoint([best, *older], own, _step_of(best))


def _named(path: Path) -> Path:
    """The step folder that --resume-from means."""
    if (path / COMMIT).is_file() or (path.name.startswith("step-") and path.is_dir()):
        return path
    for folder in (path / "checkpoints", path):
        store = CheckpointStore(folder)
        if store.steps():
            return _newest(store, own=False).checkpoints[0]
    raise UserError(f"--resume-from {path}: neither a checkpoint nor a run folder with one")


def _fork(named: Path) -> ResumePoint:
    """Start from another run's checkpoint, with the rows of metrics that led there."""
    verify(named)
    origin = RunFolder(named.resolve().parent.parent)
    history = origin.metrics_file if origin.config_file.is_file() and origin.metrics_file.is_file() else None
    log.info("starts from %s of another run", named)
    return ResumePoint([named], own=False, step=_step_of(named), history=history)


def copy_rows(source: Path, target: Path, last_step: int) -> None:
    """Copy the rows of a file of metrics up to `last_step`."""
    rows = read_rows(source)
    lines = source.read_text(encoding="utf-8").splitlines()
    kept = [line for line, row in zip(lines, rows, strict=False) if row["step"] <= last_step]
    write_atomically(target, "".join(line + "\n" for line in kept))


def _step_of(path: Path) -> int:
    step = read_json(path / META).get("step")
    if not isinstance(step, int):
        raise DamagedCheckpointError(f"{path}: {META} names no step")
    return step


def _require_same_run(resolved: RunSpec, dataset: Dataset, folder: RunFolder) -> RunSpec:
    """Compare with what made the folder; returns the run, extended where an earlier job extended it.

    Raises:
        UserError: lists the settings that differ.
    """
    saved = folder.read_config()
    dtype = recorded_dtype(saved)
    if "dtype" in resolved.automatic and resolved.dtype != dtype:
        log.info("--dtype %s, as the run began; the default here is %s", dtype, resolved.dtype)
        resolved = replace(resolved, dtype=dtype)
    ours = run_record(resolved, dataset, torch.device("cpu"))
    theirs = (
        TrainConfig().as_dict() | saved["config"] | {"dtype": dtype}
    )  # a setting that is newer than the run had its default effect
    differing = [
        f"{flag(name)} {_show(value)} here, {_show(theirs[name])} there"
        for name, value in ours["config"].items()
        if name not in MECHANICS and theirs[name] != value
    ]
    if saved["dataset"]["fingerprint"] != dataset.fingerprint:
        differing.append(f"data {dataset.path} here, {saved['dataset']['path']} there (contents differ)")
    if differing:
        if not folder.store.steps() and not folder.metrics_file.is_file():
            return resolved  # stopped before anything was done
        longer = saved["config"].get("iterations") != resolved.plan.steps
        hint = " or continue it with its own settings and --extend-to" if longer else ""
        raise UserError(
            f"{folder.path} is the folder of another configuration: {'; '.join(differing)}; "
            f"take another --run-dir{hint}"
        )
    earlier = saved["config"].get("extend_to")
    if earlier is None:
        return resolved
    if resolved.config.extend_to is None:
        log.info("the run was extended to %d steps", earlier)
        return replace(resolved, config=replace(resolved.config, extend_to=earlier))
    if resolved.config.extend_to < earlier:
        raise UserError(f"--extend-to {resolved.config.extend_to}: the run was extended to {earlier} steps already")
    return resolved


def _show(value: Any) -> str:
    return "nothing" if value is None else str(value)
