"""A package index on a real socket of this machine, and wheels and sdists made to order."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tooling.upgrade.sources.index_config import IndexSettings, PackageIndex
from tooling.upgrade.sources.indexed import Catalogue


def digest_of(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def wheel_bytes(files, name="pkg", version="1.0", *, metadata="", scripts="", record=None, filler=0, extra=()):
    """A wheel of these files. filler: bytes of a compiled module in its middle. extra: (ZipInfo, content) appended."""
    information = f"{name}-{version}.dist-info"
    members = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    members[f"{information}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode()
    if scripts:
        members[f"{information}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n".encode()
    rows = [f"{path},sha256={digest_of(content)},{len(content)}" for path, content in members.items()]
    members[f"{information}/RECORD"] = (record if record is not None else "\n".join(rows)).encode()
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (path, content) in enumerate(members.items()):
            archive.writestr(path, content)
            if number == 0 and filler:
                archive.writestr(zipfile.ZipInfo(f"{name}/_C.abi3.so"), b"\0" * filler)
        for member, content in extra:
            archive.writestr(member, content)
    return target.getvalue()


def tar_bytes(members):
    """A .tar.gz of TarInfo (with content) or path: content."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for member, content in members:
            facts = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            if facts.isfile():
                facts.size = len(content)
            archive.addfile(facts, io.BytesIO(content))
    return gzip.compress(target.getvalue(), mtime=0)


@dataclass
class Server:
    """An index at `url`/simple, files at `url`/files; everything may be changed while it runs."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """By file name."""
    facts: dict[str, dict] = field(default_factory=dict)
    """By file name: entries of PEP 691 that replace the usual ones."""
    dialect: str = "json"
    ranges: bool = True
    hashes: bool = True
    password: str = ""
    """What user "me" must send for pages; "" lets everyone in."""
    failures: list[int] = field(default_factory=list)
    """Statuses that the next requests are answered with."""
    compress: bool = False
    """Whether pages are sent compressed, though nobody asked for that."""
    cut: int = 0
    """How many of the next answers with a file break off half way."""
    moved: dict[str, str] = field(default_factory=dict)
    """Path to where it redirects."""
    log: list[tuple[str, str, dict]] = field(default_factory=list)
    """(method, path, headers) of every request."""

    def asked(self, part: str) -> list[tuple[str, str, dict]]:
        return [request for request in self.log if part in request[1]]

    def entries(self, project: str) -> list[dict]:
        found = []
        for name, content in sorted(self.files.items()):
            if name.replace("_", "-").startswith(f"{project}-"):
                hashes = {"sha256": hashlib.sha256(content).hexdigest()} if self.hashes else {}
                entry = {"filename": name, "url": f"../../files/{name}", "hashes": hashes}
                found.append({**entry, **self.facts.get(name, {})})
        return found

    def page(self, project: str) -> tuple[str, bytes]:
        if self.dialect == "json":
            body = json.dumps({"meta": {"api-version": "1.1"}, "name": project, "files": self.entries(project)})
            return "application/vnd.pypi.simple.v1+json", body.encode()
        lines = []
        for entry in self.entries(project):
            hashes = "".join(f"#{name}={value}" for name, value in entry["hashes"].items())
            yanked = f' data-yanked="{entry["yanked"]}"' if entry.get("yanked") else ""
            python = (
                f' data-requires-python="{entry["requires-python"].replace(">", "&gt;")}"'
                if "requires-python" in entry
                else ""
            )
            lines.append(f'<a href="{entry["url"]}{hashes}"{yanked}{python}>{entry["filename"]}</a><br>')
        return "text/html", ("<!DOCTYPE html><html><body>" + "\n".join(lines)).encode()


class Handler(BaseHTTPRequestHandler):
    """Answers as the `Server` at `self.server.world` says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        server = self.server.world
        self.path = self.path.removeprefix("http://elsewhere.invalid")  # asked as a proxy
        server.log.append((self.command, self.path, dict(self.headers.items())))
        expected = "Basic " + base64.b64encode(f"me:{server.password}".encode()).decode()
        if server.failures:
            self.reply(server.failures.pop(0), Retry_After="0")
        elif self.path in server.moved:
            self.reply(302, Location=server.moved[self.path])
        elif server.password and self.headers.get("Authorization") != expected:
            self.reply(401)
        elif self.path.startswith("/simple/"):
            self.simple(self.path.split("/")[2])
        else:
            self.file(self.path.rpartition("/")[2])

    do_HEAD = do_GET

    def simple(self, project):
        server = self.server.world
        kind, body = server.page(project)
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if not server.entries(project):
            self.reply(404)
        elif self.headers.get("If-None-Match") == tag:
            self.reply(304, ETag=tag)
        else:
            packed = {"Content_Encoding": "gzip"} if server.compress else {}
            self.reply(200, gzip.compress(body) if packed else body, Content_Type=kind, ETag=tag, **packed)

    def file(self, name):
        server = self.server.world
        body = server.files.get(name)
        wanted = self.headers.get("Range", "")
        if body is None:
            self.reply(404)
        elif server.cut and self.command == "GET":
            server.cut -= 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif wanted and server.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(body) - int(last))
            end = min(int(last), len(body) - 1) if first and last else len(body) - 1
            self.reply(206, body[start : end + 1], Content_Range=f"bytes {start}-{end}/{len(body)}")
        else:
            self.reply(200, body)


@pytest.fixture
def server():
    world = Server()
    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.world = world
    world.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield world
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def wheel():
    return wheel_bytes


@pytest.fixture
def tar():
    return tar_bytes


@pytest.fixture
def catalogue(server, tmp_path):
    """Makes a catalogue over the server; keywords as `Catalogue` and `IndexSettings` have them."""

    def make(*, offline=False, known=(), report=lambda _line: None, **settings):
        indexes = settings.pop("indexes", (PackageIndex(f"{server.url}/simple"),))
        chosen = IndexSettings(indexes=indexes, **{"retries": 2, "timeout": 5.0, **settings})
        return Catalogue(tmp_path / "cache", offline=offline, settings=chosen, known=known, report=report)

    return make
