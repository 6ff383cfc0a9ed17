"""A language model that answers from a script, for agent programs that are asked to work without a real one.

It speaks as much of Anthropic's messages, of OpenAI's chat completions and of its responses (all streamed) as a client
needs: the first answer to a conversation with tools asks for one call, every later one says that it is done. What was
asked is kept.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedModel:
    """Listens on a free port of this machine while it is open."""

    def __init__(self, tool: str, given: dict[str, Any]) -> None:
        """tool, given: the one call that is asked for; a client without that tool is told at once that it is done."""
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
                protocol = next(
                    (each for end, each in PROTOCOLS.items() if self.path.split("?")[0].endswith(end)), None
                )
                if protocol is None:
                    self._send("application/json", json.dumps({"input_tokens": 1}).encode())
                    return
                model.requests.append(request)
                names = {each.get("name") or each.get("function", {}).get("name") for each in request.get("tools", [])}
                said = json.dumps(request)
                answered = any(mark in said for mark in ('"tool_result"', '"role": "tool"', '"function_call_output"'))
                call = (tool, given) if tool in names and not answered else None
                events = protocol(call)
                if request.get("stream"):
                    self._send("text/event-stream", "".join(events).encode())
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


def _messages(call: tuple[str, dict[str, Any]] | None) -> list[str]:
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


def _chat(call: tuple[str, dict[str, Any]] | None) -> list[str]:
    """OpenAI's chat completions."""
    delta: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}],
        }
    head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]},
    ]
    return [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]


def _responses(call: tuple[str, dict[str, Any]] | None) -> list[str]:
    """OpenAI's responses."""
    item: dict[str, Any] = {
        "type": "message",
        "id": "item_1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }
    if call:
        arguments = json.dumps(call[1])
        item = {"type": "function_call", "id": "item_1", "call_id": "call_1", "name": call[0], "arguments": arguments}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    events = [
        {"type": "response.created", "response": {"id": "response_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "response_1", "output": [item], "usage": usage}},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


PROTOCOLS = {"/v1/messages": _messages, "/chat/completions": _chat, "/responses": _responses}
"""The end of an address, and what it answers."""
