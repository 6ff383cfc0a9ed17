"""As much of GitHub as the real `gh` asks for when it lists, opens and edits pull requests, on a Unix socket
(`http_unix_socket` of its settings)."""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class GitHub(socketserver.ThreadingUnixStreamServer):
    """Serves until it is closed; `requests` are the pull requests, `mutations` what was sent to change them."""

    daemon_threads = True

    def __init__(self, socket: Path) -> None:
        super().__init__(str(socket), _Handler)
        self.requests: list[dict] = []
        self.mutations: list[dict] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, query: str, variables: dict) -> dict:
        """The data of a query."""
        if "createPullRequest(" in query:
            return {"createPullRequest": {"pullRequest": self._create(variables["input"])}}
        if "updatePullRequest(" in query:
            self._update(variables["input"])
            return {"updatePullRequest": {"__typename": "x"}}
        if "projectItems" in query:
            empty = {"nodes": [], "pageInfo": {"hasNextPage": False, "endCursor": None}}
            return {"repository": {"pullRequest": {"projectItems": empty}}}
        if "pullRequest(number" in query:
            return {"repository": {"pullRequest": self.requests[variables["pr_number"] - 1]}}
        head = variables.get("headBranch") or variables.get("headRefName")
        found = [each for each in self.requests if each["headRefName"] == head]
        page = {"totalCount": len(found), "nodes": found, "pageInfo": {"hasNextPage": False, "endCursor": None}}
        owner = {"id": "O_1", "login": "owner"}
        branch = {"name": "main"}
        repository = {"id": "R_1", "name": "name", "owner": owner, "defaultBranchRef": branch}
        return {"repository": {**repository, "viewerPermission": "WRITE", "pullRequests": page}}

    def _create(self, given: dict) -> dict:
        self.mutations.append(given)
        number = len(self.requests) + 1
        made = {
            "id": f"PR_{number}",
            "number": number,
            "url": f"https://github.com/owner/name/pull/{number}",
            "state": "OPEN",
            "isDraft": given["draft"],
            "isCrossRepository": False,
            "headRepositoryOwner": {"id": "O_1", "login": "owner", "name": "Owner"},
            **{key: given[key] for key in ("title", "body", "baseRefName", "headRefName")},
        }
        self.requests.append(made)
        return {"id": made["id"], "url": made["url"]}

    def _update(self, given: dict) -> None:
        self.mutations.append(given)
        request = next(each for each in self.requests if each["id"] == given["pullRequestId"])
        request |= {key: given[key] for key in ("title", "body", "baseRefName") if given.get(key) is not None}


class _Handler(BaseHTTPRequestHandler):
    server: GitHub

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = self.server.answer(asked["query"], asked.get("variables") or {})
        content = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: a socket has no address to log."""
