"""Staging on a node's local disk: tensors are written there first, then copied to the run folder and compared.

Network file systems are slow at many small writes and fast at one long copy. Checkpoints are committed in the run
folder; a resumed run never reads the local disk.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from danalab.errors import UserError
from danalab.files import naming, sha256
from danalab.optim.distributed.shards import SavedTensor
from danalab.train.checkpoint.all_ranks import run_on_all_ranks
from danalab.train.parallel.world import World

log = logging.getLogger(__name__)

Writer = Callable[[Mapping[str, SavedTensor], Path], None]


def local_folder(given: Path | None, run: Path, rank: int) -> Path | None:
    """This rank's folder on the local disk, below `given` or $SLURM_TMPDIR; None without either.

    The folder's name contains a hash of the run's path, so that runs on the same node do not collide.

    Raises:
        UserError: `given` is not a folder that can be written.
    """
    disk = given or (Path(os.environ["SLURM_TMPDIR"]) if os.environ.get("SLURM_TMPDIR") else None)
    if disk is None:
        return None
    if given is not None and not (given.is_dir() and os.access(given, os.W_OK)):
        raise UserError(f"--local-ckpt-dir {given}: not a folder that can be written on this machine")
    path = str(run.resolve())
    return disk / f"danalab-{run.name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}" / f"rank-{rank}"


class LocalDisk:
    """Writes through `folder`; if that fails it warns, and writes directly from then on."""

    def __init__(self, folder: Path, write: Writer, world: World):
        """Args:
        folder: this rank's; deleted here.
        write: as `tensors.write`; collective.
        world: its `control` group is used.
        """
        self.folder = folder
        self._write, self._world = write, world
        self._in_use = True
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process

    def __call__(self, tensors: Mapping[str, SavedTensor], target: Path) -> None:
        """Write `tensors` into `target`. Collective.

        Raises:
            OSError: `target` cannot be written.
        """
        if self._in_use:
            try:
                staged = self._stage(tensors)
            except Exception as error:
                # On all ranks: `run_on_all_ranks` raises on all of them.
                self._in_use = False
                log.warning(
                    "local checkpoint folder %s cannot be used: %s; from now on checkpoints go to the run folder",
                    self.folder.parent, error,
                )  # fmt: skip
            else:
                try:
                    run_on_all_ranks(self._world, lambda: copy_files(staged, target))
                finally:
                    shutil.rmtree(staged, ignore_errors=True)
                return
        self._write(tensors, target)

    def _stage(self, tensors: Mapping[str, SavedTensor]) -> Path:
        def make() -> Path:
            self.folder.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self.folder))

        staged = run_on_all_ranks(self._world, make)[self._world.rank]
        try:
            run_on_all_ranks(self._world, lambda: self._write(tensors, staged))
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        return staged


def copy_files(source: Path, target: Path) -> None:
    """Copy every file of `source` into `target` and compare the copies.

    Raises:
        OSError: `target` cannot be written, or a copy differs.
    """
    for file in sorted(source.iterdir()):
        copy, sent = target / file.name, hashlib.sha256()
        with naming(copy), open(file, "rb") as incoming, open(copy, "wb") as outgoing:
            while block := incoming.read(1 << 22):
                sent.update(block)
                outgoing.write(block)
            outgoing.flush()
            os.fsync(outgoing.fileno())
        if sha256(copy) != sent.hexdigest():
            raise OSError(errno.EIO, f"the copy differs from {file}", str(copy))
