#!/usr/bin/env python3
"""Fetch the chat page's libraries from npm into src/danalab/serve/page/vendor, and record versions and checksums.

    scripts/vendor_page.py                       # those of versions.json again: the files must be the same
    scripts/vendor_page.py temml=0.13.6          # a new version of one

`npm pack` fetches the packages. A package of a recorded version must have the recorded checksum. Packages without files
are inside of markdown-it's build: their licences are named.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parents[1] / "src/danalab/serve/page/vendor"


def read_package(name: str, version: str) -> tuple[str, dict[str, bytes]]:
    """The checksum of a package's archive, in npm's form, and its files."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, stdout=sys.stderr
        )
        (archive,) = Path(folder).iterdir()
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        with tarfile.open(archive) as opened:
            members = [each for each in opened if each.isfile()]
            return integrity, {
                each.name.partition("/")[2]: opened.extractfile(each).read() for each in members
            }  # type: ignore[union-attr]


def main() -> None:
    """Fetch all packages; exits with a line if one has another checksum than recorded."""
    record = json.loads((VENDOR / "versions.json").read_text())
    wanted = dict(argument.split("=") for argument in sys.argv[1:])
    licences = []
    for name, package in record.items():
        version = wanted.pop(name, package["version"])
        integrity, files = read_package(name, version)
        if version == package["version"] and package["integrity"] not in ("", integrity):
            sys.exit(f"{name} {version} is {integrity}; it must be {package['integrity']}, as recorded")
        package.update(version=version, integrity=integrity)
        for path in package["files"]:
            # The style sheet's font would be another download; its letters have a fallback.
            content = re.sub(rb"@font-face \{.*?\}\n", b"", files[path], flags=re.DOTALL)
            (VENDOR / Path(path).name).write_bytes(content)
            package["files"][path] = hashlib.sha256(content).hexdigest()
        text = files[min(path for path in files if path.startswith("LICENSE"))].decode().strip()
        licences.append(f"{name} {version}, licence: {package['licence']}\n{'=' * 72}\n\n{text}\n")
    if wanted:
        sys.exit(f"{', '.join(wanted)} is no package of the page; it must be one of {', '.join(record)}")
    (VENDOR / "LICENSES.txt").write_text("\n\n".join(licences))
    (VENDOR / "versions.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
