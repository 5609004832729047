"""A hub on this machine: the few routes of the Hugging Face API that reading and downloading a dataset use.

It serves one folder as one dataset repository, and can break connections or count what is asked, so that the real
client library is tested and nothing leaves the machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "c0ffee" * 6 + "c0ff"


class FakeHub:
    """What is served, and what happened."""

    def __init__(self, repo: str, folder: Path):
        self.repo = repo
        self.folder = folder
        self.endpoint = ""
        self.served: list[str] = []
        """Path of each file of which bytes were sent."""
        self.failures = 0
        """So many of the next requests for content are cut off in the middle."""

    def listing(self) -> list[dict]:
        files = []
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            content = path.read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {
                "type": "file",
                "path": path.relative_to(self.folder).as_posix(),
                "size": len(content),
                "oid": blob,
            }
            if path.suffix == ".parquet":
                entry["lfs"] = {
                    "oid": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 100,
                }
            files.append(entry)
        return files


@contextmanager
def serve(repo: str, folder: Path):
    """A `FakeHub` with its `endpoint`, for as long as the context lasts."""
    hub = FakeHub(repo, folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _json(self, value, code=200):
            body = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if code == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_POST(self):
            length = int(self.headers.get("Content-Length", 0))
            asked = json.loads(self.rfile.read(length) or "{}").get("paths", [])
            self._json([entry for entry in hub.listing() if entry["path"] in asked])

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = unquote(self.path.split("?")[0])
            if path.startswith(f"/api/datasets/{repo}/tree/"):
                below = re.sub(r"^[^/]+/?", "", path.removeprefix(f"/api/datasets/{repo}/tree/"))
                files = [entry for entry in hub.listing() if entry["path"].startswith(below)]
                if "recursive=true" not in self.path.lower():
                    depth = below.count("/") + bool(below)
                    folders = {"/".join(f["path"].split("/")[: depth + 1]) for f in files} - {
                        f["path"] for f in files
                    }
                    files = [f for f in files if f["path"].count("/") == depth]
                    files += [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in folders]
                self._json(files)
            elif path in (f"/api/datasets/{repo}", f"/api/datasets/{repo}/revision/main") or path.endswith(
                COMMIT
            ):
                siblings = [{"rfilename": entry["path"]} for entry in hub.listing()]
                self._json({"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
            elif match := re.match(rf"/datasets/{repo}/resolve/[^/]+/(.+)", path):
                self._content(match[1])
            else:
                self._json({"error": "Repository not found"}, 404)

        def _content(self, name: str):
            content = (hub.folder / name).read_bytes()
            etag = next(e.get("lfs", e)["oid"] for e in hub.listing() if e["path"] == name)
            begin, end = 0, len(content)
            if asked := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                begin, end = int(asked[1]), int(asked[2]) + 1 if asked[2] else end
            piece = content[begin:end]
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(piece)))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            self.end_headers()
            if self.command == "HEAD":
                return
            hub.served.append(name)
            if hub.failures:
                hub.failures -= 1
                self.wfile.write(piece[: len(piece) // 2])
                self.close_connection = True
                return
            self.wfile.write(piece)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
