"""A hub on this machine, of folders: OWNER/NAME has the files of ROOT/OWNER/NAME.

Revisions are "main" and, where there is a folder ROOT/OWNER/NAME@REVISION, that. OWNER "gated" and
"private" refuse their files, and everything.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import huggingface_hub
import pytest
import transformers


class FakeHub(BaseHTTPRequestHandler):
    """Answers huggingface_hub; the server has `root` and `downloads`, the paths of files sent."""

    server: Any

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        match = re.fullmatch(
            r"/(?:api/models/)?([\w.-]+/[\w.-]+)(?:/(\w+)/([^/]+)(?:/(.*))?)?", path
        )
        name, kind, revision, file = match.groups() if match else ("", None, None, None)
        folder = self._find(name, revision or "main")
        if name.startswith("private/") or self._find(name, "main") is None:
            self._send(401, {}, {"X-Error-Code": "RepoNotFound"})
        elif folder is None:
            self._send(404, {}, {"X-Error-Code": "RevisionNotFound"})
        elif not path.startswith("/api/"):
            self._send_file(name, folder, file or "")
        elif kind == "tree":
            below = folder / (file or "")
            if below.is_dir():
                self._send(200, [self._describe(folder, one) for one in sorted(below.rglob("*"))])
            else:
                self._send(404, {}, {"X-Error-Code": "EntryNotFound"})
        else:
            names = [str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()]
            files = [{"rfilename": one} for one in names]
            self._send(200, {"id": name, "sha": commit_of(folder), "siblings": files})

    def _find(self, name: str, revision: str) -> Path | None:
        main = self.server.root / name
        for folder in main.parent.glob(f"{main.name}*"):
            own, _, branch = folder.name.partition("@")
            if own == main.name and revision in (branch or "main", commit_of(folder)):
                return Path(folder)
        return None

    def _describe(self, folder: Path, path: Path) -> dict[str, Any]:
        name = str(path.relative_to(folder))
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0" * 40}
        return {"type": "file", "path": name, "size": path.stat().st_size, "oid": etag_of(path)}

    def _send_file(self, name: str, folder: Path, file: str) -> None:
        path = folder / file
        headers = {"X-Repo-Commit": commit_of(folder)}
        if name.startswith("gated/"):
            self._send(403, {}, {**headers, "X-Error-Code": "GatedRepo"})
        elif not path.is_file():
            self._send(404, {}, {**headers, "X-Error-Code": "EntryNotFound"})
        else:
            if self.command == "GET":
                self.server.downloads.append(f"{name}/{file}")
            self._send(200, path.read_bytes(), {**headers, "ETag": f'"{etag_of(path)}"'})

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/octet-stream"
                         if isinstance(content, bytes) else "application/json")  # fmt: skip
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def commit_of(folder: Path) -> str:
    """The commit of a repository: of its path."""
    return hashlib.sha1(str(folder).encode()).hexdigest()


def etag_of(path: Path) -> str:
    """As git names a file."""
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def serve_hub(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves the repositories below a folder.

    Yields:
        The address, for HF_ENDPOINT, and the files that were downloaded, a list that grows.
    """
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    server.root, server.downloads, server.daemon_threads = root, [], True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.downloads
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def use_hub(address: str, cache: Path, *, offline: bool = False) -> Iterator[None]:
    """This process takes another hub, as with HF_ENDPOINT, HF_HUB_CACHE and HF_HUB_OFFLINE."""
    constants = huggingface_hub.constants
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patched.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patched.setattr(constants, "HF_HUB_CACHE", str(cache))
        patched.setattr(constants, "HF_HUB_OFFLINE", offline)
        patched.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patched.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
        yield
