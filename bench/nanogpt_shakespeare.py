"""nanoGPT's character Shakespeare on a CPU: its published loss with AdamW, and other optimizers with equal trials.

python bench/nanogpt_shakespeare.py --text tinyshakespeare.txt      # prepares, runs (goes on where it stopped), packs
python bench/nanogpt_shakespeare.py                                 # the table from the stored rows

The text is Karpathy's tiny Shakespeare (1,115,394 characters), which nanoGPT downloads. As there, the first 90% of the
characters train, the rest validates, and an id is a character's place in their sorted list.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from danalab.cli.app import main as danalab
from danalab.experiments.formats import as_markdown
from danalab.experiments.rows import pack, read_ladder
from danalab_bench.pages import joined
from nanogpt import folder, stored, table

BENCH = Path(__file__).parent
DATA, LADDER = Path("datasets", "nanogpt-shakespeare"), Path("ladders", "nanogpt_shakespeare")


def prepare(text: str, target: Path) -> None:
    """Write train.bin and val.bin of uint16 ids as nanoGPT does, and tokens.json with the number of characters."""
    characters = sorted(set(text))
    ids = {character: i for i, character in enumerate(characters)}
    data, cut = np.array([ids[character] for character in text], np.uint16), int(0.9 * len(text))
    target.mkdir(parents=True, exist_ok=True)
    data[:cut].tofile(target / "train.bin")
    data[cut:].tofile(target / "val.bin")
    (target / "tokens.json").write_text(json.dumps({"vocab_size": len(characters)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="tiny Shakespeare; without it nothing runs")
    chosen = parser.parse_args()
    if chosen.text:
        prepare(chosen.text.read_text(encoding="utf-8"), DATA)
        if code := danalab(["ladder", str(BENCH / "nanogpt_shakespeare.yaml"), "--out", str(LADDER)]):
            raise SystemExit(code)
        pack(joined([read_ladder(LADDER)]), folder("nanogpt_shakespeare"))
    print(as_markdown(table(stored("nanogpt_shakespeare"))), end="")
