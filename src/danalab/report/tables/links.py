"""Text with links to its sources, which is plain text where links are not supported."""

from collections.abc import Sequence


class Linked(str):
    """A cell of a table; `pieces` are its parts as (text, address)."""

    pieces: tuple[tuple[str, str], ...]

    def __new__(cls, text: str, address: str) -> "Linked":
        """One text with one address."""
        return cls.several([(text, address)])

    @classmethod
    def several(cls, pieces: Sequence[tuple[str, str]]) -> "Linked":
        """Several texts, each with an address; as text they are a list with commas."""
        made = str.__new__(cls, ", ".join(text for text, _ in pieces))
        made.pieces = tuple(pieces)
        return made
