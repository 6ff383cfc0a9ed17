"""A language model that answers from a script, for agent programs that are asked to work without a real one.

It speaks as much of Anthropic's messages (streamed) as a client needs: the first answer to a conversation with tools
asks for one call, every later one says that it is done. What was asked is kept.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedModel:
    """Listens on a free port of this machine while it is open."""

    def __init__(self, tool: str, given: dict[str, Any]) -> None:
        """tool, given: the one call that is asked for."""
        self.requests: list[dict[str, Any]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *words: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.end_headers()

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                if "/messages" not in self.path or "count_tokens" in self.path:
                    self._send("application/json", json.dumps({"input_tokens": 1}).encode())
                    return
                model.requests.append(request)
                names = {each.get("name") for each in request.get("tools", [])}
                answered = "tool_result" in json.dumps(request.get("messages", []))
                call = (tool, given) if tool in names and not answered else None
                if request.get("stream"):
                    self._send("text/event-stream", "".join(_events(call)).encode())
                else:
                    self._send("application/json", json.dumps(_message(call)).encode())

            def _send(self, kind: str, content: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedModel:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *ending: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _message(call: tuple[str, dict[str, Any]] | None) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": "Done."}
    if call:
        block = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": call[1]}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [block],
        "stop_reason": "tool_use" if call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _events(call: tuple[str, dict[str, Any]] | None) -> list[str]:
    message = _message(call)
    [block] = message["content"]
    first = {**block, "input": {}} if call else {**block, "text": ""}
    delta = {"type": "text_delta", "text": block.get("text")}
    if call:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    events = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": first},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
