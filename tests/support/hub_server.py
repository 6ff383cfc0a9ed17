"""Serve the part of the Hugging Face hub's protocol that models and datasets travel by, on loopback, from memory.

    with HubServer() as hub:
        hub.add("org/model", {"config.json": b"{}", "model.safetensors": b"..."})
        # HF_ENDPOINT=hub.url

It answers what the real client asks: information, trees, files with ETags (large ones by a redirect to a store, with
ranges), new repositories and branches, and commits with files of the LFS store. Tokens, gates and faults are settings.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".parquet", ".bin")
"""Endings of files that are stored apart, as on the hub."""


@dataclass
class Repository:
    """Files of each commit; what branches and tags point at."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        """Make `files` the newest content of a branch, and return the commit."""
        content = repr(
            (len(self.commits), sorted(files), [hashlib.sha256(files[n]).hexdigest() for n in sorted(files)])
        )
        sha = hashlib.sha1(content.encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha


class HubServer:
    """A hub on loopback; use as a context."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.token = "hf_secret_of_the_test"
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: Counter[str] = Counter()
        """What fails so many times: "upload" and "commit" (503), "reset" (the connection, in the middle of the body of
        an upload), "download" (cut in the middle), "ranges" (all of a file is sent)."""
        self.sent_bytes = 0
        """Of bodies, as far as the other side took them."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (HubAnswers,), {"hub": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.store_url = f"http://localhost:{self._server.server_port}"
        """Of large files: another host, as on the hub, so that the client asks for no metadata there."""

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, bytes], *, kind: str = "model", ref: str = "main", **flags: bool) -> str:
        """Commit files to a repository, a new one if need be, and return the commit."""
        repository = self.repositories.setdefault((kind, name), Repository())
        for flag, value in flags.items():
            setattr(repository, flag, value)
        return repository.commit(files, ref)

    def files(self, name: str, ref: str = "main") -> dict[str, bytes]:
        """Return what a model repository holds."""
        repository = self.repositories["model", name]
        return repository.commits[repository.refs[ref]]

    def downloads(self) -> list[str]:
        """Return the names of the files that were fetched, in order."""
        found = [re.search(r"GET .*/resolve/[^/]+/(.+)", line) for line in self.requests]
        return [match[1] for match in found if match]

    def fault(self, what: str) -> bool:
        """Return whether this request is to fail."""
        if self.faults[what]:
            self.faults[what] -= 1
            return True
        return False


_REPO = r"(?P<name>[^/]+/[^/]+)"
_ROUTES = [
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("GET", rf"/api/(?P<kind>model|dataset)s/{_REPO}(?:/revision/(?P<ref>.+))?", "info"),
    ("GET", rf"/api/(?P<kind>model|dataset)s/{_REPO}/tree/(?P<ref>[^/]+)", "tree"),
    ("POST", rf"/api/(?P<kind>model|dataset)s/{_REPO}/preupload/(?P<ref>.+)", "preupload"),
    ("POST", rf"/api/(?P<kind>model|dataset)s/{_REPO}/branch/(?P<ref>.+)", "branch"),
    ("POST", rf"/api/(?P<kind>model|dataset)s/{_REPO}/commit/(?P<ref>.+)", "commit"),
    ("POST", rf"/{_REPO}\.git/info/lfs/objects/batch", "batch"),
    ("PUT", r"/store/(?P<oid>\w+)", "upload"),
    ("GET", r"/store/(?P<oid>\w+)", "stored"),
    ("HEAD", r"/store/(?P<oid>\w+)", "stored"),
    ("GET", rf"/(?P<kind>datasets/|){_REPO}/resolve/(?P<ref>[^/]+)/(?P<file>.+)", "resolve"),
    ("HEAD", rf"/(?P<kind>datasets/|){_REPO}/resolve/(?P<ref>[^/]+)/(?P<file>.+)", "resolve"),
]


class HubAnswers(BaseHTTPRequestHandler):
    """Answers of one self.hub."""

    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length") or 0)
        if self.command == "PUT" and self.hub.fault("reset"):
            self._reset(length // 2)
            return
        self.body = self.rfile.read(length)
        for method, pattern, action in _ROUTES:
            if method == self.command and (match := re.fullmatch(pattern, path)):
                getattr(self, action)(**match.groupdict())
                return
        self._error(404, None, f"no route for {self.command} {path}")

    def _reset(self, after: int) -> None:
        """Take so many bytes of the body, and reset the connection, as a machine on the way does that restarts."""
        self.rfile.read(after)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for end in (self.rfile, self.wfile, self.connection):
            end.close()
        self.wfile = io.BytesIO()  # the base class flushes it
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    @property
    def _knows(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def _send(self, status: int, content: object = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.hub.sent_bytes += len(body)

    def _error(self, status: int, code: str | None, message: str) -> None:
        headers = {"X_Error_Message": message} | ({"X_Error_Code": code} if code else {})
        self._send(status, {"error": message}, **headers)

    def _find(self, kind: str, name: str, ref: str | None) -> tuple[Repository, str] | None:
        repository = self.hub.repositories.get((kind, name))
        if repository is None or (repository.private and not self._knows):
            # As the hub does: who is not logged in is not told whether there is one.
            self._error(404 if self._knows else 401, "RepoNotFound", "Repository not found")
            return None
        if repository.gated and not self._knows:
            self._error(403, "GatedRepo", "Access to this repository is restricted")
            return None
        sha = repository.refs.get(ref or "main", ref if ref in repository.commits else None)
        if sha is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {ref}")
            return None
        return repository, sha

    def whoami(self) -> None:
        if not self._knows:
            return self._error(401, None, "Invalid user token.")
        return self._send(200, {"name": "tester", "type": "user", "orgs": [{"name": "org"}]})

    def validate(self) -> None:
        self._send(200, {"errors": [], "warnings": []})

    def create(self) -> None:
        if not self._knows:
            return self._error(401, None, "Invalid user token.")
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'tester'}/{asked['name']}"
        if (asked.get("type", "model"), name) in self.hub.repositories:
            return self._send(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"})
        private = asked.get("private") or asked.get("visibility") == "private"
        self.hub.add(name, {".gitattributes": b""}, private=bool(private))
        return self._send(200, {"url": f"{self.hub.url}/{name}", "name": name, "id": "1"})

    def branch(self, kind: str, name: str, ref: str) -> None:
        if not self._knows:
            return self._error(401, None, "Invalid user token.")
        repository = self.hub.repositories[kind, name]
        if ref in repository.refs:
            return self._error(409, None, "Reference already exists")
        repository.refs[ref] = repository.refs["main"]
        return self._send(201, {})

    def info(self, kind: str, name: str, ref: str | None) -> None:
        if found := self._find(kind, name, ref):
            repository, sha = found
            siblings = [{"rfilename": file} for file in sorted(repository.commits[sha])]
            self._send(200, {"id": name, "sha": sha, "private": repository.private, "siblings": siblings})

    def tree(self, kind: str, name: str, ref: str) -> None:
        if found := self._find(kind, name, ref):
            repository, sha = found
            listed = []
            for path, content in sorted(repository.commits[sha].items()):
                entry = {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
                if path.endswith(LARGE):
                    digest = hashlib.sha256(content).hexdigest()
                    entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
                listed.append(entry)
            self._send(200, listed)

    def resolve(self, kind: str, name: str, ref: str, file: str) -> None:
        if not (found := self._find("dataset" if kind else "model", name, ref)):
            return None
        repository, sha = found
        if file not in repository.commits[sha]:
            return self._send(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        content = repository.commits[sha][file]
        if file.endswith(LARGE):
            digest = hashlib.sha256(content).hexdigest()
            self.hub.stored[digest] = content
            linked = {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(content))}
            return self._send(302, b"", X_Repo_Commit=sha, Location=f"{self.hub.store_url}/store/{digest}", **linked)
        size = {"Content_Length": str(len(content))}
        return self._send(200, content, X_Repo_Commit=sha, ETag=f'"{_blob(content)}"', **size)

    def stored(self, oid: str) -> None:
        content = self.hub.stored[oid]
        asked = "" if self.hub.fault("ranges") else self.headers.get("Range", "")
        begin = re.fullmatch(r"bytes=(\d+)-(\d*)", asked)
        part = content[int(begin[1]) : int(begin[2]) + 1 if begin[2] else None] if begin else content
        headers = {"ETag": f'"{oid}"', "Content_Length": str(len(part))}
        if begin:
            headers["Content_Range"] = f"bytes {begin[1]}-{int(begin[1]) + len(part) - 1}/{len(content)}"
        if self.command == "GET" and self.hub.fault("download"):
            self._send(206 if begin else 200, part[: len(part) // 2], **headers)
            self.wfile.flush()
            self.close_connection = True
            return
        self._send(206 if begin else 200, part, **headers)

    def preupload(self, kind: str, name: str, ref: str) -> None:
        if self._find(kind, name, ref):
            files = [
                {
                    "path": item["path"],
                    "uploadMode": "lfs" if item["path"].endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                }
                for item in json.loads(self.body)["files"]
            ]
            self._send(200, {"files": files})

    def batch(self, name: str) -> None:
        del name
        objects = []
        for item in json.loads(self.body)["objects"]:
            href = {"href": f"{self.hub.url}/store/{item['oid']}"}
            new = {} if item["oid"] in self.hub.stored else {"actions": {"upload": href}}
            objects.append({"oid": item["oid"], "size": item["size"], **new})
        self._send(200, {"transfer": "basic", "objects": objects})

    def upload(self, oid: str) -> None:
        if self.hub.fault("upload"):
            return self._error(503, None, "Service Unavailable")
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.stored[oid] = self.body
        return self._send(200)

    def commit(self, kind: str, name: str, ref: str) -> None:
        if not self._knows:
            return self._error(401, None, "Invalid user token.")
        if self.hub.fault("commit"):
            return self._error(503, None, "Service Unavailable")
        if not (found := self._find(kind, name, ref)):
            return None
        repository, sha = found
        files = dict(repository.commits[sha])
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif entry["key"] == "deletedFile":
                files.pop(value["path"])
        new = repository.commit(files, ref)
        url = f"{self.hub.url}/{name}/commit/{new}"
        return self._send(200, {"success": True, "commitOid": new, "commitUrl": url})


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
