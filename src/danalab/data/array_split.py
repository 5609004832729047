"""`danalab data split`: train/ and val/ of a folder of arrays.

    by file       links
    by sequence   copies of the sequences of each split, as .npy; a link where a file lies in one split

Several names of one file are one item. The choice depends on the seed and on the position among all files or sequences.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from danalab.data.arrays import find_files, has_splits, open_array
from danalab.data.order.permutation import Permutation
from danalab.errors import UserError
from danalab.files import fsync_path, naming, write_json


def split_arrays(
    source: str | Path, out: str | Path, *, val_ratio: float = 0.01, seed: int = 42, by: str = "file"
) -> dict[str, Any]:
    """Make `out`/train and `out`/val of the arrays in `source`, with the same subfolders; returns their facts.

    A share `val_ratio` of the files or sequences (`by`) validates. UserError: fewer than two of them, a dangling link,
    or an `out` that lies in `source`. OSError: an `out` that is not empty.
    """
    source, out = Path(source), Path(out)
    if not source.is_dir():
        raise UserError(f"{source}: no such folder")
    if has_splits(source):
        raise UserError(f"{source}: has train/ and val/ already; use it as it is")
    if source.resolve() in [out.resolve(), *out.resolve().parents]:
        raise UserError(f"--output-path {out}: lies in the data folder {source}; choose one outside of it")
    counts = _sequences(source)
    total = len(counts) if by == "file" else sum(counts.values())
    if total < 2:
        raise UserError(f"{source}: a single {by} cannot be split" + "; give --by sequence" * (by == "file"))
    n_val = min(max(1, round(val_ratio * total)), total - 1)
    chosen = np.zeros(total, bool)
    chosen[Permutation(total, f"danalab division 1|{seed}".encode())(np.arange(n_val))] = True
    if by == "file":
        chosen = np.repeat(chosen, list(counts.values()))
    parts = np.split(chosen, np.cumsum(list(counts.values()))[:-1])
    validates = dict(zip(counts, parts, strict=True))
    rows = {
        "train": {path: np.flatnonzero(~mine) for path, mine in validates.items() if not mine.all()},
        "val": {path: np.flatnonzero(mine) for path, mine in validates.items() if mine.any()},
    }
    made: dict[str, Any] = {"by": by, "seed": seed, "val_ratio": val_ratio}
    for split, files in rows.items():
        made[f"{split}_dir"] = str(out / split)
        made[f"{split}_files"] = len(files)
        made[f"{split}_sequences"] = sum(map(len, files.values()))
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.is_dir():
        out.rmdir()  # refuses one that is not empty
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        for split, files in rows.items():
            for path, chosen in files.items():
                place = work / split / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                if len(chosen) == counts[path]:
                    place.symlink_to(path.resolve())
                    continue
                shard = open_array(path)
                place = place if place.suffix == ".npy" else place.with_name(f"{place.name}.npy")
                with naming(place):
                    np.save(place, shard.read(chosen * shard.row, shard.row))
        if (source / "tokenizer.json").exists():
            (work / "tokenizer.json").symlink_to((source / "tokenizer.json").resolve())
        write_json(work / "split.json", {"source": str(source.resolve()), **made})
        work.chmod(0o755)
        work.rename(out)  # atomic
        fsync_path(out.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return made


def _sequences(source: Path) -> dict[Path, int]:
    """Number of sequences of each array below `source`, all of one length; of several names of a file only one."""
    opened = [open_array(path) for path in find_files(source)]
    if not opened:
        raise UserError(f"{source}: no arrays (.npy, .pt) below it")
    files = [shard.path.stat() for shard in opened]
    shards = list(
        {(file.st_dev, file.st_ino): shard for file, shard in zip(files, opened, strict=True)}.values()
    )
    for shard in shards:
        if shard.length != shards[0].length:
            lengths = f"{shard.length} tokens, not {shards[0].length} as in {shards[0].path}"
            raise UserError(f"{shard.path}: sequences of {lengths}")
    return {shard.path: shard.n_tokens // shard.row for shard in shards}
