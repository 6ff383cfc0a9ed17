"""Streams go on while images are decoded, hashed and sent: the event loop is never held for long."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from areal.api import ImageRef
from areal.dataset.encoding import load_tokenizer
from areal.dataset.pixels import ImageLimits, image_of
from areal.engine.server.client import ServerClient
from areal.engine.server.images import body_with_images
from areal.workflow.pixels import PixelPrompts
from tests.support.vision import QWEN3_VL, encoded, noise

SECONDS = 0.02
SIDE = 1024
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


async def longest_block(work):
    """The most CPU seconds of the loop's thread between two turns of a task that is always ready, while `work` runs.

    CPU seconds, since on a busy machine any thread waits for a processor.
    """
    task, longest, last = asyncio.ensure_future(work), 0.0, time.thread_time()
    while not task.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest, await task


def files(count):
    return [encoded(noise(SIDE, SIDE, seed=seed)) for seed in range(count)]


def test_64_images_of_16_prompts_are_read_beside_the_loop():
    values = [base64.b64encode(content).decode() for content in files(8)]
    reader = PixelPrompts(
        load_tokenizer("characters:0123456789?+"), processor=QWEN3_VL, limits=ImageLimits(), enable_thinking=False,
        max_pixels=256 * 256,
    )  # fmt: skip
    rows = [
        {"messages": "<image>" * 4 + f"{number}?", "images": [values[(number + other) % 8] for other in range(4)]}
        for number in range(16)
    ]

    async def read():
        return await asyncio.gather(*map(reader.read, rows))

    longest, found = asyncio.run(longest_block(read()))
    assert sum(len(images) for _, images, _ in found) == 64
    assert reader.files.num_decoded == 8
    assert longest < SECONDS


class _Drain(BaseHTTPRequestHandler):
    """A server that takes everything and answers with the number of bytes."""

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        assert self.headers["Content-Type"] == "application/json"
        self.rfile.read(length)
        answer = str(length).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """Say nothing."""


def test_requests_with_two_large_images_are_made_and_sent_beside_the_loop():
    refs = [ImageRef(image=image_of(noise(SIDE, SIDE, seed=seed)), start=2 * seed, length=1) for seed in range(2)]
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Drain)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def send(client):
        body = await body_with_images({"token_ids": list(range(2000))}, refs)
        url = f"http://127.0.0.1:{server.server_port}"
        return len(body), await client.post(url, "/generate", body, timeout=60)

    async def main():
        client = ServerClient()
        try:
            await client.post(f"http://127.0.0.1:{server.server_port}", "/", timeout=60)  # imports what it needs
            return await longest_block(_gathered(send(client) for _ in range(4)))
        finally:
            await client.close()

    async def _gathered(calls):
        return await asyncio.gather(*calls)

    try:
        longest, found = asyncio.run(main())
    finally:
        server.shutdown()
        server.server_close()
    assert all(sent == received > 2 * SIDE * SIDE for sent, received in found)
    assert longest < SECONDS
