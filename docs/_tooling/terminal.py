"""A command in a terminal as a picture: what it printed, when, and the SVG that shows it, moving or still.

pty -> [(seconds, text)] -> screens at even times -> one SVG with each distinct line once
"""

import fcntl
import html
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

Event = tuple[float, str]
"""Seconds since the start, and what was printed."""

COLORS = {
    "30": "#3b4252", "31": "#e06c75", "32": "#98c379", "33": "#e5c07b", "34": "#61afef", "35": "#c678dd",
    "36": "#56b6c2", "37": "#d7dae0", "90": "#7f8796", "91": "#ff7b85", "92": "#b5e890", "93": "#ffd68a",
    "94": "#7fc1ff", "95": "#dd8df5", "96": "#6fd3e0", "97": "#ffffff",
}  # fmt: skip
PAPER, INK = "#1d2129", "#d7dae0"
_CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]|\x1b\][^\x07]*\x07")
_PALETTE = [0, 95, 135, 175, 215, 255]


def record(
    words: Sequence[str], *, columns: int, rows: int, cwd: str | os.PathLike, environment: Mapping[str, str]
) -> list[Event]:
    """Run a command in a terminal of its own until it ends; raises CalledProcessError where it fails."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    start, events, rest = time.monotonic(), [], b""
    with subprocess.Popen(
        words, stdin=follower, stdout=follower, stderr=follower, cwd=cwd, env=environment, start_new_session=True
    ) as process:
        os.close(follower)
        while True:
            ready, _, _ = select.select([leader], [], [], 0.1)
            if not ready:
                if process.poll() is not None:
                    break
                continue
            try:
                data = rest + os.read(leader, 65536)
            except OSError:  # the last process of the terminal ended
                break
            if data == rest:
                break
            text, rest = _whole(data)
            events.append((round(time.monotonic() - start, 3), text))
    os.close(leader)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words), "".join(text for _, text in events))
    return events


def _whole(data: bytes) -> tuple[str, bytes]:
    """Text, and the bytes of a character that has not arrived whole."""
    for cut in range(4):
        try:
            return data[: len(data) - cut].decode(), data[len(data) - cut :]
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), b""


@dataclass(frozen=True)
class Style:
    color: str = ""
    bold: bool = False
    dim: bool = False


@dataclass
class Screen:
    """What a terminal shows: text, colours, and the few movements that progress bars need."""

    columns: int
    rows: int
    lines: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = Style()
    rest: str = ""
    """The beginning of a control sequence that has not arrived whole."""

    def feed(self, text: str) -> None:
        text, place = self.rest + text, 0
        begun = re.search(r"\x1b(\[[?\d;]*)?$", text)
        text, self.rest = (text[: begun.start()], begun[0]) if begun else (text, "")
        while place < len(text):
            code = _CODE.match(text, place)
            if code:
                self._control(code[1] or "", code[2] or "")
                place = code.end()
                continue
            self._put(text[place])
            place += 1

    def visible(self) -> list[list[tuple[str, Style]]]:
        """The last rows."""
        return self.lines[-self.rows :]

    def _put(self, character: str) -> None:
        if character == "\n":
            self._to_row(self.row + 1)
        elif character == "\r":
            self.column = 0
        elif character == "\t":
            self.column += 8 - self.column % 8
        elif character >= " ":
            if self.column >= self.columns:
                self._to_row(self.row + 1)
                self.column = 0
            line = self.lines[self.row]
            line.extend([(" ", Style())] * (self.column + 1 - len(line)))
            line[self.column] = (character, self.style)
            self.column += 2 if unicodedata.east_asian_width(character) == "W" else 1

    def _to_row(self, row: int) -> None:
        self.row = max(row, 0)
        while len(self.lines) <= self.row:
            self.lines.append([])

    def _control(self, numbers: str, letter: str) -> None:
        count = int(numbers) if numbers.isdigit() else 1
        if letter == "A":
            self._to_row(self.row - count)
        elif letter == "B":
            self._to_row(self.row + count)
        elif letter == "K":
            line = self.lines[self.row]
            line[:] = [] if numbers == "2" else line[: self.column]
        elif letter == "G":
            self.column = count - 1
        elif letter == "m":
            self._paint((numbers or "0").split(";"))

    def _paint(self, codes: list[str]) -> None:
        while codes:
            code = codes.pop(0)
            if code in ("0", ""):
                self.style = Style()
            elif code == "1":
                self.style = replace(self.style, bold=True)
            elif code == "2":
                self.style = replace(self.style, dim=True)
            elif code == "22":
                self.style = replace(self.style, bold=False, dim=False)
            elif code == "39":
                self.style = replace(self.style, color="")
            elif code == "38" and codes[:1] == ["5"]:
                self.style = replace(self.style, color=_indexed(int(codes[1])))
                del codes[:2]
            elif code == "38" and codes[:1] == ["2"]:
                self.style = replace(self.style, color="#{:02x}{:02x}{:02x}".format(*map(int, codes[1:4])))
                del codes[:4]
            elif code in COLORS:
                self.style = replace(self.style, color=COLORS[code])


def _indexed(number: int) -> str:
    """A colour of the 256."""
    if number < 16:
        return list(COLORS.values())[number]
    if number >= 232:
        return "#{0:02x}{0:02x}{0:02x}".format(8 + 10 * (number - 232))
    number -= 16
    return f"#{_PALETTE[number // 36]:02x}{_PALETTE[number // 6 % 6]:02x}{_PALETTE[number % 6]:02x}"


def screens(events: Sequence[Event], *, columns: int, rows: int, count: int) -> list[list[str]]:
    """`count` screens at even times of a recording, the last one at its end; each a list of lines in SVG."""
    screen, shown, left = Screen(columns, rows), [], list(events)
    end = events[-1][0]
    for number in range(1, count + 1):
        while left and (left[0][0] <= end * number / count or number == count):
            screen.feed(left.pop(0)[1])
        shown.append([_line(cells) for cells in screen.visible()])
    return shown


def _line(cells: list[tuple[str, Style]]) -> str:
    """Spans of one style."""
    spans, column = [], 0
    for style, group in groupby(cells, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in group)
        if text.strip():
            marks = f' fill="{style.color}"' if style.color else ""
            marks += ' font-weight="bold"' if style.bold else ""
            marks += ' opacity="0.7"' if style.dim else ""
            inner = html.escape(text.rstrip(), quote=False)
            spans.append(f'<tspan x="{column * WIDTH:g}"{marks}>{inner}</tspan>')
        column += len(text)
    return "".join(spans)


WIDTH, HEIGHT, MARGIN, TITLE = 7.8, 18, 14, 30
"""Pixels of a character, of a line, around the text, and of the bar above it."""


def as_svg(
    shown: Sequence[Sequence[str]], *, columns: int, title: str, label: str, frame_seconds: float, hold_seconds: float
) -> str:
    """The screens one after the other, for ever; still where there is one, or where the reader wants no motion."""
    rows = max(len(lines) for lines in shown)
    wide, high = round(columns * WIDTH + 2 * MARGIN), rows * HEIGHT + TITLE + MARGIN
    names: dict[str, str] = {}
    for lines in shown:
        for line in filter(None, lines):
            names.setdefault(line, f"l{len(names)}")
    step = rows * HEIGHT + 40
    groups = []
    for number, lines in enumerate(shown):
        uses = "".join(
            f'<use href="#{names[line]}" y="{number * step + place * HEIGHT}"/>'
            for place, line in enumerate(lines)
            if line
        )
        groups.append(f"<g>{uses}</g>")
    total = (len(shown) - 1) * frame_seconds + hold_seconds
    keys = "".join(
        f"{100 * number * frame_seconds / total:.3f}%{{transform:translateY({-number * step}px)}}"
        for number in range(len(shown))
    )
    last = -(len(shown) - 1) * step
    motion = f"@keyframes play{{{keys}100%{{transform:translateY({last}px)}}}}" if len(shown) > 1 else ""
    motion += f".film{{animation:play {total:.1f}s steps(1,end) infinite}}" if len(shown) > 1 else ""
    motion += f"@media (prefers-reduced-motion:reduce){{.film{{animation:none;transform:translateY({last}px)}}}}"
    dots = "".join(
        f'<circle cx="{18 + 18 * n}" cy="15" r="5.5" fill="{c}"/>'
        for n, c in enumerate(("#e06c75", "#e5c07b", "#98c379"))
    )
    symbols = "".join(f'<text id="{name}">{line}</text>' for line, name in names.items())
    font = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
        f'role="img" aria-label="{html.escape(label)}">'
        f"<style>text{{font:13px {font};fill:{INK};white-space:pre}}{motion}</style>"
        f'<rect width="{wide}" height="{high}" rx="8" fill="{PAPER}"/>{dots}'
        f'<text x="{wide / 2:g}" y="20" text-anchor="middle" opacity="0.75">{html.escape(title)}</text>'
        f"<defs>{symbols}</defs>"
        f'<svg x="{MARGIN}" y="{TITLE}" width="{wide - 2 * MARGIN}" height="{rows * HEIGHT + 6}">'
        f'<g transform="translate(0 13)"><g class="film">{"".join(groups)}</g></g></svg></svg>\n'
    )
