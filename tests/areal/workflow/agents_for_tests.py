"""Agents that the tests of the agent workflow run, in this process and in others."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request


class NotAnsweredError(Exception):
    """A request came back with an error; its arguments are the status and the body."""


def ask(session, messages, **fields):
    """Send a chat with the standard library and return the answer's message."""
    request = urllib.request.Request(
        f"{session.openai_base_url}/chat/completions",
        json.dumps({"model": "m", "messages": messages, **fields}).encode(),
        {"Authorization": f"Bearer {session.key}", "Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        with error:  # It holds the connection, and the traceback would hold it.
            raise NotAnsweredError(error.code, json.load(error)) from None


async def asks_twice(row, session):
    first = await asyncio.to_thread(ask, session, row["messages"])
    second = [*row["messages"], first, {"role": "user", "content": "sure?"}]
    return (await asyncio.to_thread(ask, session, second))["content"]


async def rewards_itself(row, session):
    await asyncio.to_thread(ask, session, row["messages"])
    return 0.75


def give_reward(session, value):
    """Set the session's reward; returns the status of the response."""
    url = session.anthropic_base_url + "/rl/reward"
    request = urllib.request.Request(
        url, json.dumps({"reward": value}).encode(), {"Authorization": f"Bearer {session.key}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        return response.status


async def is_scored_later(row, session):
    """Leave the reward to somebody who needs some time."""
    await asyncio.to_thread(ask, session, row["messages"])

    async def grade():
        await asyncio.sleep(0.2)
        await asyncio.to_thread(give_reward, session, 0.25)

    LATER.append(asyncio.create_task(grade()))


async def leaves_a_straggler(row, session):
    """Answer; with `straggler`, leave a task that asks again, else wait for that task before asking again.

    The straggler's agent ends once the other one is at work: with no session left the gateway would close, and the
    straggler would find nobody who refuses it."""
    said = await asyncio.to_thread(ask, session, row["messages"])
    if row["straggler"]:
        await row["other_is_at_work"].wait()
        LATER.append(asyncio.create_task(_goes_on(row, session, row["session_is_over"])))
        return said["content"]
    row["other_is_at_work"].set()
    while not STRAGGLERS:
        await asyncio.sleep(0.01)
    again = [*row["messages"], said, {"role": "user", "content": "sure?"}]
    return (await asyncio.to_thread(ask, session, again))["content"]


async def _goes_on(row, session, session_is_over):
    await session_is_over.wait()
    try:
        STRAGGLERS.append((200, await asyncio.to_thread(ask, session, row["messages"])))
    except NotAnsweredError as error:
        STRAGGLERS.append(error.args)


LATER = []
"""Tasks that outlive their agent."""
STRAGGLERS = []
"""What they were answered: status and body."""


async def never_calls(row, session):
    return "42"


async def raises(row, session):
    await asyncio.to_thread(ask, session, row["messages"])
    raise RuntimeError("the agent is broken")


async def hangs(row, session):
    await asyncio.to_thread(ask, session, row["messages"])
    await asyncio.sleep(60)


async def fills_the_context(row, session):
    messages = list(row["messages"])
    while True:
        messages += [await asyncio.to_thread(ask, session, messages), {"role": "user", "content": "more " * 50}]


def blocks(row, session):
    return ask(session, row["messages"])["content"] + f" for {row['answer']}"


def write_task(row, folder):
    (folder / "task.txt").write_text(row["answer"])


def score_by_folder(run):
    assert run.messages[-1]["role"] == "assistant"
    return float((run.folder / "task.txt").read_text() == run.row["answer"])


if __name__ == "__main__":
    import os

    from areal.workflow.agent_call import AgentSession

    said = ask(AgentSession.from_environment(), [{"role": "user", "content": sys.argv[1]}])
    sys.stdout.write(" ".join([os.getcwd(), os.environ["HOME"], *sorted(os.environ)]) + "\n")
    with open("answer.txt", "w") as file:
        file.write(said["content"].upper())
