"""The alphabet of byte-level `tokenizer.json` files: each byte is written as one printable character.

Printable Latin-1 bytes are written as themselves, the other 68 as the characters from U+0100 on.
"""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]

CHARACTER_OF_BYTE = {byte: chr(byte) for byte in _PRINTABLE} | {b: chr(256 + n) for n, b in enumerate(_OTHERS)}
BYTE_OF_CHARACTER = {character: byte for byte, character in CHARACTER_OF_BYTE.items()}


def to_printable(token: bytes) -> str:
    """A token as written in `tokenizer.json`."""
    return "".join([CHARACTER_OF_BYTE[byte] for byte in token])


def from_printable(token: str) -> bytes:
    """The bytes of a token written in `tokenizer.json`.

    Raises:
        KeyError: a character outside the alphabet: the file is not byte-level.
    """
    return bytes([BYTE_OF_CHARACTER[character] for character in token])
