"""Pictures of the program at work, from real runs: `make screenshots`.

    python docs/build_screenshots.py [demo] [train] [chat] [report]     # default: all; `demo` and `chat` take minutes
    python docs/build_screenshots.py chat --run speedrun/rl             # of a chat that has been trained

demo: `danalab demo` in a terminal, as a moving SVG; train: the end of `danalab train`; chat: a conversation with the
model of a speedrun, and report: the page of the stored ladder, in Chromium, light and dark. All are written to
docs/figures/screens.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from _tooling.terminal import as_svg, record, screens  # noqa: E402

OUT = ROOT / "docs" / "figures" / "screens"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
QUESTIONS = ("What is your name?", "What is 12 * 7?", "And minus 4?")
TRAIN = (
    "danalab train --data data --d-model 64 --n-layers 2 --n-heads 1 --seq-len 64 --batch-size 8 --iterations 200 "
    "--lr 2e-3 --run-dir runs/first"
)


def environment(folder: Path) -> dict[str, str]:
    """Of commands that find this checkout's `danalab`."""
    tools = folder / ".bin"
    tools.mkdir(exist_ok=True)
    (tools / "danalab").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m danalab "$@"\n')
    (tools / "danalab").chmod(0o755)
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}


def terminal(command: str, folder: Path, name: str, *, rows: int, frames: int, label: str) -> None:
    """Record a command as NAME.svg; with one frame the picture is that of its end."""
    columns = 120
    events = record(command.split(), columns=columns, rows=rows, cwd=folder, environment=environment(folder))
    kept = ROOT / "build" / "screens" / f"{name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(events), encoding="utf-8")
    minutes, seconds = divmod(round(events[-1][0]), 60)
    typed = (0.0, f"\x1b[32m$\x1b[0m {command}\r\n")
    shown = screens([typed, *events], columns=columns, rows=rows, count=frames)
    took = f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    text = as_svg(
        shown, columns=columns, title=f"{command.split(' --')[0]} ({took})", label=label,
        frame_seconds=0.2, hold_seconds=8,
    )  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.svg").write_text(text, encoding="utf-8")


def demo(folder: Path) -> None:
    label = "A terminal: danalab demo trains AdamW and ADana, then prints a table and the compute saved"
    terminal("danalab demo --out demo", folder, "demo", rows=26, frames=110, label=label)


def train(folder: Path) -> None:
    _small_data(folder)
    label = "A terminal: danalab train prints its plan, progress and the final loss"
    terminal(TRAIN, folder, "train", rows=30, frames=1, label=label)


def _small_data(folder: Path) -> None:
    if not (folder / "data").is_dir():
        words = ["danalab", "data", "prepare", "stdlib", "--tokenizer", "bpe-1024", "--out", "data"]
        subprocess.run(words, cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)


def report(folder: Path) -> None:
    """The page of the stored ladder."""
    ladder = ROOT / "bench" / "results" / "ladder_cpu_v1"
    words = ["danalab", "report", str(ladder), "--out", "report"]
    subprocess.run(words, cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)
    with browser() as shot:
        for scheme in ("light", "dark"):
            shot((folder / "report" / "report.html").as_uri(), OUT / f"report-{scheme}.png", scheme)


def chat(folder: Path, run: Path | None = None) -> None:
    """A conversation with `run`, or with the last stage of a new speedrun."""
    if run is None:
        run = folder / "speedrun" / "rl"
        words = ["danalab", "speedrun", "--preset", "cpu-tiny", "--out", "speedrun"]
        subprocess.run(words, cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)
    words = ["danalab", "serve", str(run.resolve()), "--port", "8765"]
    with subprocess.Popen(words, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if "http://" in line:
                    break
            with browser() as shot:
                for scheme in ("light", "dark"):
                    shot("http://127.0.0.1:8765/", OUT / f"chat-{scheme}.png", scheme, QUESTIONS)
        finally:
            server.terminate()


@contextmanager
def browser() -> Iterator:
    """A function (address, file, colour scheme, questions) that makes one screenshot."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def shot(address: str, file: Path, scheme: Literal["light", "dark"], questions: Sequence[str] = ()) -> None:
            tab = chromium.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            tab.goto(address)
            for question in questions:
                tab.get_by_role("textbox").last.fill(question)
                tab.keyboard.press("Enter")
                tab.wait_for_timeout(4000)
            tab.wait_for_timeout(1000)
            file.parent.mkdir(parents=True, exist_ok=True)
            tab.screenshot(path=file)
            tab.close()

        yield shot
        chromium.close()


PICTURES = {"demo": demo, "train": train, "report": report, "chat": chat}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the pictures of the program at work.")
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help=f"{', '.join(PICTURES)}; default: all")
    parser.add_argument("--run", type=Path, help="chat: the run that answers, instead of a new speedrun's")
    flags = parser.parse_args()
    for name in sorted(set(flags.pictures) - set(PICTURES)):
        parser.error(f"unknown picture '{name}'; known: {', '.join(PICTURES)}")
    with tempfile.TemporaryDirectory(prefix="danalab-screens-") as temporary:
        for name in flags.pictures or PICTURES:
            more = {"run": flags.run} if name == "chat" else {}
            PICTURES[name](Path(temporary), **more)
            print(name, flush=True)


if __name__ == "__main__":
    main()
