"""Agents of test_agent_runs."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.request


def _ask(session, messages):
    request = urllib.request.Request(
        f"{session.openai_base_url}/chat/completions",
        json.dumps({"model": "m", "messages": messages}).encode(),
        {"Authorization": f"Bearer {session.key}", "Content-Type": "application/json"},
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return json.load(response)["choices"][0]["message"]


async def asks_twice(row, session):
    """Answer a question in two turns, and note that it was asked."""
    with open(os.environ["AREAL_TEST_PROMPTS"], "a") as file:
        file.write(f"{os.getpid()} {row['messages'][-1]['content']}\n")
    messages = list(row["messages"])
    messages.append(await asyncio.to_thread(_ask, session, messages))
    return (await asyncio.to_thread(_ask, session, [*messages, {"role": "user", "content": "?"}]))["content"]
