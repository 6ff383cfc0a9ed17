"""What the gateway adds to an engine: a scripted engine of fixed delay, asked directly and over HTTP.

    .venv/bin/python benchmarks/gateway.py                    # two tables
    .venv/bin/python benchmarks/gateway.py --quick --json
    .venv/bin/python benchmarks/gateway.py --tokens           # the second table alone

Each client holds a conversation of several turns, the first of which has the given context; the engine waits 5 ms and
answers with 32 tokens. "added" is the median time of a turn over HTTP less that of a direct call with the same tokens,
at the last turn; "cpu" is that of the whole process per request, which other programs on the machine change least;
"lag" is how long the event loop stood still, at the 99th percentile. Clients, server and engine share one thread:
clients elsewhere would cost less. Rates are those of the machine as it was; compare rows with each other.

The second table is what a further token of an answer costs in CPU time, in each dialect, streamed and not: the slope
between answers of 128 and of 4,096 tokens, from the engine's lists to the bytes that the client has read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from typing import Any

import aiohttp

from areal.api import GenerationConfig, ModelRequest, ModelResponse, StopReason
from areal.gateway.config import GatewayConfig, SessionLimits
from areal.gateway.rendering import Renderer
from areal.gateway.server import Gateway
from areal.testing.scripted import ambiguous_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ANSWER = "the answer is 42, then " * 4
OUTPUT_TOKENS = 32
DELAY_SECONDS = 0.005
CASES = [
    # clients, tokens of context, turns, stream
    (1, 1000, 10, False),
    (1, 16000, 10, False),
    (1, 16000, 10, True),
    (1, 16000, 50, False),
    (1, 64000, 10, False),
    (16, 1000, 10, False),
    (64, 1000, 10, False),
    (64, 1000, 10, True),
    (200, 1000, 5, True),
    (256, 1000, 3, False),
]
QUICK = CASES[:3]
DIALECTS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "go"}]},
    "responses": {"input": "go"},
    "messages": {"messages": [{"role": "user", "content": "go"}], "max_tokens": 100_000},
}
FEW, MANY = 128, 4096
"""Tokens of short and of long answers."""
ROUNDS = 40


class FixedEngine:
    """Answers with the same tokens after the same time: what is measured is not this engine."""

    version = 0
    context_length = 10_000_000

    def __init__(self, tokenizer: Any, *, output_tokens: int = OUTPUT_TOKENS, seconds: float = DELAY_SECONDS) -> None:
        ids = tokenizer.encode(ANSWER, add_special_tokens=False)
        ids *= output_tokens // len(ids) + 1
        self.tokens = [*ids[: output_tokens - 1], tokenizer.eos_token_id]
        self.seconds = seconds

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Wait, and answer."""
        await asyncio.sleep(self.seconds)
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=list(self.tokens),
            output_logprobs=[-0.5] * len(self.tokens),
            output_versions=[0] * len(self.tokens),
            stop_reason=StopReason.STOP,
        )

    def stats(self) -> dict[str, float]:
        """Return nothing: it is never paused."""
        return {}


async def converse(
    http: aiohttp.ClientSession, session: Any, context: int, turns: int, *, stream: bool
) -> tuple[list[float], int]:
    """Return the seconds of each turn, and the tokens of the last prompt."""
    messages = [{"role": "user", "content": "ab" * context}]
    seconds = []
    tokens = 0
    for turn in range(turns):
        started = time.perf_counter()
        body = {"model": "m", "messages": messages, "stream": stream}
        url, headers = f"{session.urls.openai}/chat/completions", {"Authorization": f"Bearer {session.key}"}
        async with http.post(url, json=body, headers=headers) as response:
            data = await response.read()
        seconds.append(time.perf_counter() - started)
        said = session.answers[-1].reply.text if stream else json.loads(data)["choices"][0]["message"]["content"]
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": f"more {turn}"}]
        tokens = session.answers[-1].length
    return seconds, tokens


async def measure_lag(found: list[float]) -> None:
    """Note how late this task's turns come, until it is cancelled."""
    while True:
        started = time.perf_counter()
        await asyncio.sleep(0.005)
        found.append(time.perf_counter() - started - 0.005)


async def case(
    tokenizer: Any, renderer: Renderer, clients: int, context: int, turns: int, stream: bool
) -> dict[str, Any]:
    """Measure one row of the table."""
    engine: Any = FixedEngine(tokenizer)
    gconfig = GenerationConfig(max_new_tokens=64)
    lags: list[float] = []
    gateway = Gateway(renderer, GatewayConfig(limits=SessionLimits(max_requests=10_000)))
    connector = aiohttp.TCPConnector(limit=0)
    async with gateway.running(), aiohttp.ClientSession(connector=connector) as http:
        sessions = [gateway.open(engine, gconfig) for _ in range(clients)]
        watch = asyncio.create_task(measure_lag(lags))
        started, used = time.perf_counter(), time.process_time()
        found = await asyncio.gather(*(converse(http, one, context, turns, stream=stream) for one in sessions))
        wall, used = time.perf_counter() - started, time.process_time() - used
        watch.cancel()
        for one in sessions:
            await gateway.close(one)
        direct = []
        ids = [5] * found[0][1]
        for _ in range(10):
            begun = time.perf_counter()
            await engine.agenerate(ModelRequest(input_ids=ids, gconfig=gconfig))
            direct.append(time.perf_counter() - begun)
    last = statistics.median(seconds[-1] for seconds, _ in found)
    second = statistics.median(seconds[1] for seconds, _ in found)
    return {
        "clients": clients,
        "context_tokens": context,
        "turns": turns,
        "stream": stream,
        "added_ms_last_turn": round(1000 * (last - statistics.median(direct)), 2),
        "added_ms_second_turn": round(1000 * (second - statistics.median(direct)), 2),
        "requests_per_second": round(clients * turns / wall, 1),
        "cpu_ms_per_request": round(1000 * used / (clients * turns), 2),
        "loop_lag_ms_p99": round(1000 * sorted(lags)[int(0.99 * (len(lags) - 1))], 1),
        "exact_continuation": sessions[0].statistics().get("exact_continuation"),
    }


async def cpu_per_answer(tokenizer: Any, renderer: Renderer, dialect: str, tokens: int, *, stream: bool) -> float:
    """Return the least CPU seconds of one request whose answer has so many tokens; each in a session of its own."""
    engine: Any = FixedEngine(tokenizer, output_tokens=tokens, seconds=0.0)
    gateway = Gateway(renderer, GatewayConfig())
    found = []
    async with gateway.running(), aiohttp.ClientSession() as http:
        for _ in range(ROUNDS):
            session = gateway.open(engine, GenerationConfig(max_new_tokens=2 * MANY))
            url, headers = f"{session.urls.openai}/{dialect}", {"Authorization": f"Bearer {session.key}"}
            body = {"model": "m", "stream": stream, **DIALECTS[dialect]}
            used = time.process_time()
            async with http.post(url, json=body, headers=headers) as response:
                await response.read()
            found.append(time.process_time() - used)
            assert len(session.answers[0].output) == tokens, "the answer is there as a whole"
            await gateway.close(session)
    return min(found)


def token_rows(tokenizer: Any, renderer: Renderer) -> list[dict[str, Any]]:
    """Measure the second table."""
    rows = []
    for dialect in DIALECTS:
        for stream in (False, True):
            few, many = (
                asyncio.run(cpu_per_answer(tokenizer, renderer, dialect, tokens, stream=stream))
                for tokens in (FEW, MANY)
            )
            cost = 1e6 * (many - few) / (MANY - FEW)
            rows.append({"dialect": dialect, "stream": stream, "cpu_us_per_token": round(cost, 2)})
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Write rows with equal names as a table of Markdown."""
    names = list(rows[0])
    sys.stdout.write("| " + " | ".join(names) + " |\n|" + " --- |" * len(names) + "\n")
    for row in rows:
        sys.stdout.write("| " + " | ".join(str(row[name]) for name in names) + " |\n")


def main() -> None:
    """Measure all rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first rows")
    parser.add_argument("--tokens", action="store_true", help="only what a token costs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    arguments = parser.parse_args()
    tokenizer = ambiguous_tokenizer(TEMPLATE)
    renderer = Renderer(tokenizer, enable_thinking=False, template_date="2026-01-01")
    cases = [] if arguments.tokens else QUICK if arguments.quick else CASES
    rows = [asyncio.run(case(tokenizer, renderer, *one)) for one in cases]
    per_token = token_rows(tokenizer, renderer)
    if arguments.json:
        sys.stdout.write(json.dumps({"conversations": rows, "tokens": per_token}) + "\n")
        return
    for table in filter(None, (rows, per_token)):
        print_table(table)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
