"""What config.json records about a run, and whether a folder is the folder of this run."""

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from danalab.errors import UserError
from danalab.train.config.fields import flag, names_of
from danalab.train.config.run_spec import RunSpec, recorded_dtype
from danalab.train.parallel.world import World
from danalab.train.run.folder import RunFolder
from danalab.train.stage import stage_kind
from danalab.train.system.provenance import versions

if TYPE_CHECKING:
    from danalab.data import Dataset

log = logging.getLogger(__name__)


def run_record(
    spec: RunSpec,
    dataset: "Dataset",
    device: torch.device,
    world: World = World.single(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "stage": stage_kind(spec.config).name,
        **spec.as_dict(),
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


def require_same_run(spec: RunSpec, dataset: "Dataset", folder: RunFolder) -> RunSpec:
    """Compare with the run that made the folder; returns the run with that run's automatic settings and extension."""
    saved, stage = folder.read_config(), stage_kind(spec.config).name
    if "dataset" not in saved:
        raise UserError(f"{folder.path} is an imported model; take another --run-dir, and --init-from {folder.path}")
    if saved.get("stage", "pretraining") != stage:
        there = saved.get("stage", "pretraining")
        raise UserError(f"{folder.path} is the folder of a run of {there}, not of {stage}; take another --run-dir")
    dtype = recorded_dtype(saved)
    if "dtype" in spec.automatic and spec.dtype != dtype:
        log.info("--dtype %s, as the run began; the default here is %s", dtype, spec.dtype)
        spec = replace(spec, dtype=dtype)
    spec = _with_defaults_of(saved["config"], spec)
    # The sets of validation windows stay; version 0.1 did not bound the last one.
    sets = {
        "eval_batches": saved["config"].get("eval_batches"),
        "final_eval_batches": saved["config"].get("final_eval_batches") or 0,
    }
    kept = {name: count for name, count in sets.items() if name in spec.automatic and count is not None}
    spec = replace(spec, config=replace(spec.config, **kept))
    ours = spec.as_dict()["config"]
    theirs = saved["config"] | {"dtype": dtype}
    differing = [
        f"{flag(name)} {_show(value)} here, {_show(theirs.get(name))} there"
        for name, value in ours.items()
        if name in names_of(type(spec.config), "run")
        and theirs.get(name) != value
        and not (name == "init_from" and _is_moved(ours, theirs))
    ]
    if saved["dataset"]["fingerprint"] != dataset.fingerprint:
        differing.append(f"data {dataset.path} here, {saved['dataset']['path']} there (contents differ)")
    if differing:
        if not folder.store.steps() and not folder.metrics_file.is_file():
            return spec  # stopped before the first step
        longer = saved["config"].get("iterations") != spec.plan.steps
        hint = " or continue it with its own settings and --extend-to" if longer else ""
        raise UserError(
            f"{folder.path} is the folder of another configuration: {'; '.join(differing)}; "
            f"take another --run-dir{hint}"
        )
    earlier, wanted = saved["config"].get("extend_to"), spec.job.extend_to
    if earlier is None:
        return spec
    if wanted is None:
        log.info("the run was extended to %d steps", earlier)
        return replace(spec, config=replace(spec.config, extend_to=earlier))
    if wanted < earlier:
        raise UserError(f"--extend-to {wanted}: the run was extended to {earlier} steps already")
    return spec


def _is_moved(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Whether both start from the same place beside their run folder: the folders were copied or renamed together."""
    here, there = (
        os.path.relpath(config["init_from"], config["run_dir"])
        if config.get("init_from") and config.get("run_dir")
        else None
        for config in (ours, theirs)
    )
    return here is not None and here == there


def _with_defaults_of(saved: dict[str, Any], spec: RunSpec) -> RunSpec:
    """The run with the warm-up and the weight decay that it began with, where they are automatic: defaults change."""
    if (saved.get("iterations"), saved.get("lr")) != (spec.plan.steps, spec.plan.lr):
        return spec
    names = ("warmup_steps", "weight_decay", "wd_ts", "decay_bound")
    taken = {name: saved[name] for name in names if name in spec.automatic and name in saved}
    if taken.get("warmup_steps", 0) is None:  # a configuration that was written by hand
        return spec
    planned = {name.replace("warmup_steps", "warmup"): value for name, value in taken.items()}
    return replace(spec, config=replace(spec.config, **taken), plan=replace(spec.plan, **planned))


def _show(value: Any) -> str:
    return "nothing" if value is None else str(value)
