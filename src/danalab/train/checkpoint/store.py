"""The folder of checkpoints, and the protocol that makes a checkpoint either complete or absent.

    checkpoints/step-00001000/   *.distcp, .metadata    tensors
                                 meta.json              everything that is not a tensor
                                 manifest.json          size and SHA-256 of each file above
                                 COMMIT                 SHA-256 of manifest.json; written last

Writing: files, fsync of each, manifest.json, fsync, COMMIT by temporary file + fsync + rename. Only then may an older
checkpoint be deleted, its COMMIT first. Reading: newest first, only with a COMMIT, every hash is checked.

Each rank writes, syncs and hashes its own files; rank 0 commits when all are done, and removes everything if one fails.
A symbolic link in the folder names a checkpoint and keeps it from being deleted.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from danalab.errors import UserError
from danalab.files import fsync_path, read_json, sha256, write_atomically, write_json
from danalab.train.parallel.world import World

log = logging.getLogger(__name__)

META, MANIFEST, COMMIT = "meta.json", "manifest.json", "COMMIT"
_STEP = re.compile(r"step-(\d{8,})")


class CheckpointStore:
    """The checkpoints of one run folder."""

    def __init__(self, folder: str | os.PathLike[str]):
        """`folder`: `checkpoints/` of the run folder; created at the first write."""
        self.folder = Path(folder)

    def path(self, step: int) -> Path:
        """Folder of the checkpoint of a step, whether it exists or not."""
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Committed steps, ascending, without verification."""
        return sorted(step for step, path in self._folders() if (path / COMMIT).is_file())

    # ---- writing ----

    def write(
        self,
        step: int,
        meta: dict[str, Any],
        write_tensors: Callable[[Path], None],
        world: World = World(),  # noqa: B008 - frozen
    ) -> Path:
        """Write and commit the checkpoint of `step`, replacing an existing one. Collective.

        `meta` of rank 0 becomes meta.json; `write_tensors` writes this rank's files into the given folder. OSError: the
        disk is full or not writable for some rank; the incomplete checkpoint is removed, older ones are untouched.
        """
        target = self.path(step)

        def make() -> None:
            if world.is_main:
                self.folder.mkdir(parents=True, exist_ok=True)
                self.remove(step)
                target.mkdir()

        def finish() -> None:
            if world.is_main:
                write_json(target / META, meta)
                commit(target, {name: entry for own in entries for name, entry in own.items()})
                fsync_path(self.folder)

        try:
            run_on_all_ranks(world, make)
            run_on_all_ranks(world, lambda: write_tensors(target))
            entries = run_on_all_ranks(
                world, lambda: _entries(target, sorted(target.glob(f"__{world.rank}_*")))
            )
            run_on_all_ranks(world, finish)
        except BaseException:
            if world.is_main and not (target / COMMIT).exists():
                shutil.rmtree(target, ignore_errors=True)
            raise
        return target

    def remove(self, step: int) -> None:
        """Delete a checkpoint, its COMMIT first, so that an incomplete one is never read."""
        target = self.path(step)
        if not target.exists():
            return
        (target / COMMIT).unlink(missing_ok=True)
        fsync_path(target)
        shutil.rmtree(target)

    def prune(self, newest: int, keep_last: int, keep_every: int = 0) -> None:
        """Delete the checkpoints up to `newest` (committed) that retention does not keep.

        Kept are the `keep_last` newest, multiples of `keep_every`, and named ones. Steps after `newest` are damaged
        checkpoints that were passed over: they do not count and are not deleted, and training will replace them. A
        checkpoint that cannot be deleted is reported and kept.
        """
        steps = [step for step in self.steps() if step <= newest]
        named = set(self.names().values())
        for step in steps[:-keep_last]:
            if (keep_every and step % keep_every == 0) or step in named:
                continue
            try:
                self.remove(step)
            except OSError as error:
                log.warning("old checkpoint %s could not be deleted: %s", self.path(step), error)

    def name_best(self, step: int) -> None:
        """Link `best` to the checkpoint, which keeps it; where links cannot be made, a warning."""
        temporary = self.folder / ".best.new"
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self.path(step).name)
            temporary.replace(self.folder / "best")
            fsync_path(self.folder)
        except OSError as error:
            log.warning("checkpoint of step %d could not be named best: %s", step, error)

    def names(self) -> dict[str, int]:
        """Names of checkpoints -> their steps."""
        steps = {}
        for link in self.folder.iterdir() if self.folder.is_dir() else ():
            match = _STEP.fullmatch(Path(os.readlink(link)).name) if link.is_symlink() else None
            if match:
                steps[link.name] = int(match[1])
        return steps

    def clean(self) -> None:
        """Delete what killed processes left: folders without COMMIT. Only while the run is locked."""
        for _, path in list(self._folders()):
            if not (path / COMMIT).is_file():
                log.warning("removing %s: it was never committed", path)
                shutil.rmtree(path, ignore_errors=True)

    # ---- reading ----

    def newest(self) -> Path:
        """The newest checkpoint that verifies; those passed over are logged. UserError: there is none."""
        passed = []
        for step, path in sorted(self._folders(), reverse=True):
            reason = why_unusable(path)
            if reason is None:
                return self.path(step)
            passed.append(f"{path}: {reason}")
            log.warning("passed over %s", passed[-1])
        raise UserError(
            f"{self.folder}: no checkpoint can be used ({'; '.join(passed) or 'there is none'}); to start again, move "
            "the run folder away or take another --run-dir"
        )

    def _folders(self) -> Iterator[tuple[int, Path]]:
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            match = _STEP.fullmatch(path.name)
            if match and path.is_dir() and not path.is_symlink():
                yield int(match[1]), path


def commit(folder: Path, known: Mapping[str, Any] | None = None) -> None:
    """fsync the files of a checkpoint (`known`: synced already), write the manifest, then COMMIT."""
    known = known or {}
    entries = {**known, **_entries(folder, [file for file in folder.iterdir() if file.name not in known])}
    fsync_path(folder)
    write_json(folder / MANIFEST, {"files": dict(sorted(entries.items()))})
    write_atomically(folder / COMMIT, sha256(folder / MANIFEST) + "\n")


def _entries(folder: Path, files: Iterable[Path]) -> dict[str, Any]:
    """The manifest entries of `files`, which are synced to disk."""
    entries = {}
    for file in files:
        fsync_path(file)
        entries[file.name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    return entries


def why_unusable(folder: Path) -> str | None:
    """Why a checkpoint must not be read; None if it is committed and verifies against its manifest."""
    try:
        if (folder / COMMIT).read_text(encoding="utf-8").strip() != sha256(folder / MANIFEST):
            return f"{MANIFEST} is not the one that was committed"
        for name, entry in read_json(folder / MANIFEST)["files"].items():
            if sha256(folder / name) != entry["sha256"]:
                return f"{name} is damaged: its SHA-256 differs from the manifest"
    except (OSError, ValueError) as error:  # without COMMIT its writing was never completed
        return str(error)
    return None


def verify(folder: Path) -> None:
    """UserError: a checkpoint is not committed, or differs from what was written."""
    reason = why_unusable(folder)
    if reason is not None:
        raise UserError(f"{folder}: {reason}")


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a checkpoint."""
    return read_json(folder / META)


T = TypeVar("T")


def run_on_all_ranks(world: World, work: Callable[[], T]) -> list[T]:
    """Run `work` on all ranks; all get all results, in order of ranks, or the first failed rank's error. Collective."""
    if world.size == 1:
        return [work()]
    result: tuple[T | None, Exception | None]
    try:
        result = (work(), None)
    except (
        Exception
    ) as error:  # for the others: picklable, and with its rank (the error's own `rank` if it has one)
        where = f"(rank {getattr(error, 'rank', world.rank)})"
        portable: Exception = RuntimeError(f"{type(error).__name__}: {error} {where}")
        if isinstance(error, OSError):
            portable = OSError(error.errno, f"{error.strerror or error} {where}", error.filename)
        result = (None, portable)
    results = world.gather(result)
    for _, error in results:
        if error is not None:
            raise error
    return [value for value, _ in results]
