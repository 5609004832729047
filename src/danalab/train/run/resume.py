"""Where a job starts: new weights, the newest valid checkpoint of its folder, or a checkpoint or model that was named.

--resume-from   weights, optimizer, step and rows of metrics            --init-from   weights only, from step 0
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from danalab.errors import UserError
from danalab.files import read_json
from danalab.train.checkpoint.store import (
    COMMIT,
    CheckpointStore,
    read_meta,
    verify,
)
from danalab.train.config.flags import flag, names_of
from danalab.train.config.train_config import MODEL_FIELDS, TrainConfig
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.stage import stage_kind
from danalab.train.system.device import versions

if TYPE_CHECKING:
    from danalab.data import Dataset

log = logging.getLogger(__name__)


@dataclass
class ResumePoint:
    """The state that a job starts from."""

    source: Path
    """A checkpoint that verifies, or a model in Hugging Face format."""
    own: bool = False
    """Whether it is the run's own."""
    step: int = 0
    finished: bool = False
    """The run has ended; no step is left."""
    weights_only: bool = False
    """Only the model is loaded; the run starts at step 0."""

    @property
    def is_checkpoint(self) -> bool:
        return (self.source / COMMIT).is_file()


def choose_resume_point(
    spec: TrainConfig, dataset: Dataset, folder: RunFolder
) -> tuple[TrainConfig, ResumePoint | None]:
    """(the run with what it takes over from the resume point, the resume point); None: new weights.

    The folder is locked by the caller. UserError: it holds another run, or checkpoints that `--no-auto-resume`
    protects, or nothing usable.
    """
    spec, point = _choose(spec, dataset, folder)
    if point is None:
        return spec, None
    if point.is_checkpoint:
        theirs = read_meta(point.source).get("model") or {}
    else:
        from danalab.train.run.exchange import read_model

        theirs = read_model(point.source).config.as_dict()
    ours = spec.model.as_dict()
    if theirs.get("arch") != ours["arch"]:
        return spec, point  # loading the weights will fail with a message
    without_flag = ours.keys() - MODEL_FIELDS - {"seq_len"}
    taken = {
        name: theirs[name] for name in sorted(without_flag) if name in theirs and theirs[name] != ours[name]
    }
    if taken:
        log.info("%s: as in %s", ", ".join(f"{name} {value}" for name, value in taken.items()), point.source)
        spec = replace(spec, model_extras=spec.model_extras | taken)
    return spec, point


def _choose(spec: TrainConfig, dataset: Dataset, folder: RunFolder) -> tuple[TrainConfig, ResumePoint | None]:
    wanted = spec.resume_from
    if spec.init_from is not None and wanted is not None:
        raise UserError("--init-from starts a new run and --resume-from continues one; leave one of them out")
    if folder.config_file.is_file():
        spec = require_same_run(spec, dataset, folder)
    committed = folder.store.steps()
    if committed and not spec.auto_resume:
        raise UserError(
            f"{folder.path}: has checkpoints up to step {committed[-1]} and --no-auto-resume was given; "
            "let it resume, or take another --run-dir"
        )
    folder.store.clean()
    if committed:
        newest = folder.store.path(committed[-1])
        if wanted is not None and wanted.resolve() != newest.resolve():
            if wanted.parent.resolve() == newest.parent.resolve():
                raise UserError(
                    f"--resume-from {wanted}: the run is at step {committed[-1]}; to go back, take another --run-dir"
                )
            log.info("resuming from the checkpoints in %s, not from %s", folder.path, wanted)
        newest = folder.store.newest()
        point = ResumePoint(newest, own=True, step=read_meta(newest)["step"])
        is_over = (folder.read_summary() or {}).get("status") == "finished"
        point.finished = is_over and point.step >= spec.last_step
        return spec, point
    if wanted is not None:  # a checkpoint of another run, with the rows of metrics up to it
        named = _named(wanted, "--resume-from")
        meta = read_meta(named)
        if meta["step"] > spec.last_step:
            raise UserError(f"--resume-from {named}: the run here ends at step {spec.last_step}, before it")
        theirs = (meta.get("config") or {}).get("opt", spec.opt)
        if theirs != spec.opt:
            raise UserError(
                f"--resume-from {named}: is a run of {theirs}, not of {spec.opt}; give --init-from for its weights"
            )
        log.info("starts from %s of another run", named)
        return spec, ResumePoint(named, step=meta["step"])
    if spec.init_from is None:
        return spec, None
    file = spec.init_from / "config.json"
    described = read_json(file) if file.is_file() else {}
    is_export = isinstance(described, dict) and "model_type" in described and "config" not in described
    source = spec.init_from if is_export else _named(spec.init_from, "--init-from")
    return spec, ResumePoint(source, weights_only=True)


def _named(path: Path, option: str) -> Path:
    """The step folder that a path given to `option` means, verified."""
    if (path / COMMIT).is_file() or (path.name.startswith("step-") and path.is_dir()):
        verify(path)
        return path
    for folder in (path / "checkpoints", path):
        store = CheckpointStore(folder)
        if store.steps():
            return store.newest()
    raise UserError(f"{option} {path}: neither a checkpoint nor a run folder with one")


def run_record(
    spec: TrainConfig,
    dataset: Dataset,
    device: torch.device,
    world: World = World(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "stage": stage_kind(spec).name,
        "given": spec.given.as_dict(),
        "config": spec.as_dict(),
        "plan": spec.facts(),
        "model": spec.model.as_dict(),
        "lr_source": spec.lr_source,
        "steps": spec.last_step,
        "tokens_per_step": spec.tokens_per_step,
        "params": spec.model.exact_params,
        "dataset": {
            "path": dataset.location,
            "fingerprint": dataset.fingerprint,
            "samples": _samples(dataset),
            "tokens": dataset.n_tokens,
            "tokenizer": dataset.tokenizer_name,
        },
        "world_size": world.size,
        "parallel": {"backend": world.layout.backend, **world.layout.shape(world.size)},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def require_same_run(spec: TrainConfig, dataset: Dataset, folder: RunFolder) -> TrainConfig:
    """Compare with the run that made the folder; returns the run with that run's automatic settings and extension."""
    saved, stage = folder.read_config(), stage_kind(spec).name
    if "dataset" not in saved:
        raise UserError(
            f"{folder.path} is an imported model; take another --run-dir, and --init-from {folder.path}"
        )
    if saved.get("stage", "pretraining") != stage:
        there = saved.get("stage", "pretraining")
        raise UserError(
            f"{folder.path} is the folder of a run of {there}, not of {stage}; take another --run-dir"
        )
    theirs = saved["config"]
    # They follow from the device and the ranks where they are automatic.
    taken = {
        name: theirs[name]
        for name in ("dtype", "eval_batches", "final_eval_batches")
        if spec.automatic(name) and theirs[name] != getattr(spec, name)
    }
    spec = replace(spec, **taken)
    ours = spec.as_dict()
    differing = [
        name
        for name in names_of(type(spec), "run")
        if theirs.get(name) != ours[name] and not (name == "init_from" and _is_moved(ours, theirs))
    ]
    # What was typed explains what follows from it.
    typed, before = spec.given.as_dict(), saved["given"]
    shown = [
        name
        for name in names_of(type(spec), "run")
        if differing and typed[name] != before.get(name) and (name in differing or ours[name] is None)
    ] or differing
    pairs = {
        name: (theirs.get(name), ours[name]) if name in differing else (before.get(name), typed[name])
        for name in sorted(shown)
    }
    reasons = [
        f"{flag(name)}: {_show(there)} there, {_show(here)} here" for name, (there, here) in pairs.items()
    ]
    place, way = saved["dataset"]["path"], "repeat its command to continue it"
    other = saved["dataset"]["fingerprint"] != dataset.fingerprint
    changed = [] if other else _changed_files(saved["dataset"].get("samples", []), dataset)
    if other and place != dataset.location:
        reasons.append(f"data: {place} there, {dataset.path} here")
    elif other or changed:
        reasons.append(f"data: {place} changed since" + (f" in {', '.join(changed[:4])}" if changed else ""))
        way = way if pairs else "restore its data to continue it"
    elif pairs.keys() == {"iterations"} and spec.iterations > theirs["iterations"]:
        way = f"give --extend-to {spec.iterations} to lengthen it"
    if reasons:
        if not folder.store.steps() and not folder.metrics_file.is_file():
            return spec  # stopped before the first step
        raise UserError(
            f"{folder.path} already holds a run with other settings ({'; '.join(reasons)}); {way}, "
            "or take another --run-dir"
        )
    for name, value in taken.items():
        log.info("%s %s, as the run began", flag(name), value)
    earlier, wanted = theirs["extend_to"], spec.extend_to
    if earlier is None:
        return spec
    if wanted is None:
        log.info("the run was extended to %d steps", earlier)
        return replace(spec, extend_to=earlier)
    if wanted < earlier:
        raise UserError(f"--extend-to {wanted}: the run was extended to {earlier} steps already")
    return spec


def _samples(dataset: Dataset) -> list[list[str]]:
    """What tells a changed file of the training split, then of the validation split, where there is one."""
    try:
        validation = dataset.open_split("val")
    except UserError:
        return dataset.samples
    return [*dataset.samples, ["the validation split", validation.fingerprint], *validation.samples]


def _changed_files(samples: list[list[str]], dataset: Dataset) -> list[str]:
    """Names of what differs from its `samples` (absent, or of training files only, in runs of earlier versions)."""
    pairs = zip(samples, _samples(dataset), strict=False)
    return [name for (name, then), (_, now) in pairs if then != now]


def _is_moved(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether both start from the same place beside their run folder: the folders were copied or renamed together."""
    here, there = (
        os.path.relpath(config["init_from"], config["run_dir"])
        if config.get("init_from") and config.get("run_dir")
        else None
        for config in (ours, theirs)
    )
    return here is not None and here == there


def _show(value: Any) -> str:
    return "nothing" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
