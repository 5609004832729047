"""The weights of a checkpoint, read without torch.distributed."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from danalab.models import build_model
from danalab.train.checkpoint import tensors
from danalab.train.checkpoint.store import DamagedCheckpointError
from danalab.train.checkpoint.weights import read_weights
from danalab.train.run.open import open_run

FIXTURES = Path(__file__).parents[2] / "fixtures" / "runs_0_1"
STEP = "checkpoints/step-00000010"


@pytest.mark.parametrize("kind", ["single", "zero"])
def test_the_weights_are_those_that_torch_reads(kind):
    run = open_run(FIXTURES / kind)
    loaded, reference = run.load_model().model, build_model(run.model_config)
    tensors.read(FIXTURES / kind / STEP, reference)
    for name, value in reference.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def damaged(folder: Path, damage) -> Path:
    """A copy of a checkpoint with other metadata."""
    copy = Path(shutil.copytree(FIXTURES / "single" / STEP, folder / "step"))
    metadata = FileSystemReader(copy).read_metadata()
    damage(metadata)
    (copy / ".metadata").write_bytes(pickle.dumps(metadata))
    return copy


HEAD = "model.output_head.weight"


def drop_a_block(metadata) -> None:
    metadata.state_dict_metadata[HEAD].chunks.clear()


def move_a_block(metadata) -> None:
    chunk = metadata.state_dict_metadata[HEAD].chunks[0]
    metadata.state_dict_metadata[HEAD].chunks[0] = ChunkStorageMetadata(torch.Size((1, 0)), chunk.sizes)


def shorten_a_block(metadata) -> None:
    chunk = metadata.state_dict_metadata[HEAD].chunks[0]
    sizes = torch.Size((chunk.sizes[0] - 1, chunk.sizes[1]))
    metadata.state_dict_metadata[HEAD].chunks[0] = ChunkStorageMetadata(chunk.offsets, sizes)


def cut_the_bytes(metadata) -> None:
    for place in metadata.storage_data.values():
        place.length = 10


def rename_a_tensor(metadata) -> None:
    metadata.state_dict_metadata["model.other"] = metadata.state_dict_metadata.pop(HEAD)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_a_block, "values, its blocks 0"),
        (move_a_block, "cannot be read"),
        (shorten_a_block, "values, its blocks 5,104"),
        (cut_the_bytes, "cannot be read"),
        (rename_a_tensor, "blocks that the files do not hold"),
    ],
)
def test_blocks_that_are_missing_or_elsewhere_are_refused(tmp_path, damage, message):
    model = build_model(open_run(FIXTURES / "single").model_config)
    with pytest.raises(DamagedCheckpointError, match=message):
        read_weights(damaged(tmp_path, damage), model)


@pytest.mark.slow
def test_generate_loads_neither_distributed_tensors_nor_the_compiler():
    program = (
        "import sys; from danalab.cli.app import main\n"
        f"assert main(['generate', {str(FIXTURES / 'single')!r}, '--prompt', 'a', '--max-tokens', '2']) == 0\n"
        "heavy = ('sympy', 'torch.distributed.tensor', 'torch.distributed.checkpoint', 'torch._dynamo')\n"
        "assert not [name for name in heavy if name in sys.modules]"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
