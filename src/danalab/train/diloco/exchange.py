"""The shared folder of a DiLoCo run, `runs/NAME/diloco/`: the only connection between workers.

    round-00000500/worker-3.safetensors   weights of worker 3 after step 500, complete (renamed into place)
                   present.json           workers that count in this round; written once, by the first worker that sees
                                          all or times out (a hard link: only one writer succeeds)
                   outcome.safetensors    outer weights and momentum after the round, for workers that return later
    coming/worker-3.json                  the round that worker 3 is working for: the others wait for it

The others do not wait for a worker that missed the previous round, unless it announced this one. There is no leader:
any worker may die.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from danalab.errors import UserError
from danalab.files import read_state, write_json

Step: Any = Annotated[int, Field(ge=0, strict=True)]
"""A file of one number."""
Workers: Any = list[Step]

_ROUND = re.compile(r"round-(\d{8,})")
_PRESENT, _OUTCOME = "present.json", "outcome.safetensors"
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.002, 0.5


class Exchange:
    """A worker's access to the shared folder, created at its first write; a round is named by the step that ends it.

    A round waits `patience` [s] for expected workers.
    """

    def __init__(self, folder: Path, worker: int, workers: int, patience: float):
        self.folder = folder
        self.worker, self.workers, self.patience = worker, workers, patience
        self.bytes_moved = 0
        """Bytes written and read by this worker."""

    # ---- past rounds ----

    def decided(self) -> dict[int, list[int]]:
        """Decided rounds -> workers that count in them, in order."""
        return {end: present for end in self._rounds() if (present := self._present(end)) is not None}

    def newest_outcome(self) -> int | None:
        """The newest round with outer weights in the folder; None if there is none."""
        return max((end for end in self._rounds() if self.has_outcome(end)), default=None)

    def has_outcome(self, end: int) -> bool:
        """Whether the outer weights after a round are in the folder."""
        return (self._round(end) / _OUTCOME).is_file()

    def _rounds(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return sorted(int(match[1]) for path in self.folder.iterdir() if (match := _ROUND.fullmatch(path.name)))

    # ---- a round ----

    def announce(self, end: int) -> None:
        """Announce that this worker is working for the round that ends at step `end`."""
        (self.folder / "coming").mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "coming" / f"worker-{self.worker}.json", end)

    def deposit(self, end: int, weights: Mapping[str, Tensor], facts: Mapping[str, float]) -> None:
        """Write this worker's weights (contiguous, on the CPU) and numbers about them, or raise UserError."""
        metadata = {name: repr(value) for name, value in facts.items()}
        self._write(self._file(end, self.worker), weights, metadata)

    def wait_for_others(self, end: int, should_stop: Callable[[], bool]) -> list[int] | None:
        """Wait for the others and agree on the workers that count; None if `should_stop` became true meanwhile."""
        deadline, pause = time.monotonic() + self.patience, FIRST_POLL_SECONDS
        regulars = self._counted_before(end)
        while (present := self._present(end)) is None:
            there = [worker for worker in range(self.workers) if self._file(end, worker).is_file()]
            coming = {worker for worker in range(self.workers) if self._coming(worker) == end}
            if regulars | coming <= set(there) or time.monotonic() > deadline:
                self._decide(end, there)
                continue
            if should_stop():
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL_SECONDS)
        return present

    def _counted_before(self, end: int) -> set[int]:
        """Workers that counted in the previous round; at first all."""
        everyone = set(range(self.workers))
        for other in reversed([other for other in self._rounds() if other < end]):
            if (present := self._present(other)) is not None:
                return everyone & set(present)
        return everyone

    def _coming(self, worker: int) -> int | None:
        with contextlib.suppress(UserError):
            return read_state(Step, self.folder / "coming" / f"worker-{worker}.json")
        return None

    def _decide(self, end: int, present: list[int]) -> None:
        target = self._round(end) / _PRESENT
        own = target.with_name(f".{_PRESENT}.{self.worker}")
        write_json(own, present)
        with contextlib.suppress(FileExistsError):  # another worker was faster; its decision holds
            os.link(own, target)
        own.unlink()

    def _present(self, end: int) -> list[int] | None:
        file = self._round(end) / _PRESENT
        if not file.is_file():
            return None
        return read_state(Workers, file)

    def weights_of(self, end: int, worker: int) -> tuple[Callable[[str], Tensor], dict[str, float]]:
        """(name -> weights, facts) that a worker wrote; FileNotFoundError once an old round's files were deleted."""
        return self._read(self._file(end, worker))

    # ---- outcomes ----

    def publish(self, end: int, outcome: Mapping[str, Tensor], keep_from: int) -> None:
        """Write the outer weights for workers that return later; delete rounds before `keep_from` but the last two."""
        self._write(self._round(end) / _OUTCOME, outcome, {})
        for old in self._rounds()[:-2]:
            # The decision is kept: it tells a returning worker which rounds it has missed.
            gone = [*self._round(old).glob("worker-*.safetensors")]
            gone += [self._round(old) / _OUTCOME] if old < keep_from else []
            for file in gone:
                file.unlink(missing_ok=True)

    def outcome(self, end: int) -> Callable[[str], Tensor]:
        """Name -> outer weights or momentum after a round; FileNotFoundError if the folder does not have them."""
        return self._read(self._round(end) / _OUTCOME)[0]

    # ---- files ----

    def _round(self, end: int) -> Path:
        return self.folder / f"round-{end:08d}"

    def _file(self, end: int, worker: int) -> Path:
        return self._round(end) / f"worker-{worker}.safetensors"

    def _write(self, file: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
        from safetensors.torch import save_file

        partial = file.with_name(f".{file.name}.{self.worker}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(file.parent).free
            if free < sum(tensor.nbytes for tensor in tensors.values()):
                raise UserError(f"{file}: the disk is full; the workers of a DiLoCo run exchange their weights there")
            save_file(dict(tensors), partial, metadata=metadata)
            os.replace(partial, file)
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {error.strerror or error}") from error
        self.bytes_moved += file.stat().st_size

    def _read(self, file: Path) -> tuple[Callable[[str], Tensor], dict[str, Any]]:
        from safetensors import safe_open

        size = file.stat().st_size  # FileNotFoundError
        opened = safe_open(file, "pt")
        self.bytes_moved += size
        facts = {name: float(value) for name, value in (opened.metadata() or {}).items()}
        return opened.get_tensor, facts
