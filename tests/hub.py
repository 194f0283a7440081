"""A model hub on this computer: as much of the protocol as its client needs."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub(BaseHTTPRequestHandler):
    """Keeps the files of one repository; every file is sent as it is, none by LFS."""

    name: str
    files: dict[str, bytes]
    made: dict[str, object]  # how the repository was asked for
    asked: list[str]  # paths

    def log_message(self, *_):
        """Say nothing."""

    def send(self, body=b"", status=200, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}/{self.name}"

    @property
    def commit(self):
        return hashlib.sha1(repr(sorted(type(self).files.items())).encode()).hexdigest()

    def do_GET(self):
        self.asked.append(self.path)
        path, files = unquote(urlsplit(self.path).path), type(self).files
        if path.startswith(f"/{self.name}/resolve/"):
            content = files[path.split("/", 5)[5]]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return self.send(content, ETag=etag, X_Repo_Commit=self.commit)
        if path.startswith(f"/api/models/{self.name}/tree"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in files.items()
            ]
            return self.send(tree)
        if path.startswith(f"/api/models/{self.name}"):
            siblings = [{"rfilename": name} for name in files]
            return self.send({"id": self.name, "sha": self.commit, "siblings": siblings})
        return self.send({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            type(self).made = json.loads(body)
            return self.send({"url": self.address, "name": self.name})
        if "/preupload/" in self.path:
            wanted = json.loads(body)["files"]
            told = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            files = [told | {"path": each["path"]} for each in wanted]
            return self.send({"files": files})
        if self.path == "/api/validate-yaml":
            return self.send({"errors": [], "warnings": []})
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                type(self).files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del type(self).files[value["path"]]
        url = f"{self.address}/commit/{self.commit}"
        return self.send({"commitUrl": url, "commitOid": self.commit, "pullRequestUrl": None})


@contextmanager
def serving(name, files):
    """Yield the address of a hub with one repository, and what it has and was asked."""
    kind = type("OneHub", (Hub,), {"name": name, "files": files, "made": {}, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", kind
        server.shutdown()
