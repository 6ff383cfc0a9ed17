"""The server as a client sees it: the SDK's own client in a real repository; over real pipes where those matter."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from jsonschema import Draft202012Validator
from mcp import MCPError

from tooling.mcp.paging import assemble, size
from tooling.mcp.tools.call import make_call, output_schema
from tooling.mcp.tools.table import offered

TOOLS = offered(writes=True).tools
READING = offered(writes=False).tools
CALLS = {
    "new_kinds": {},
    "new_schema": {"kind": "dataset"},
    "new_explain": {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}},
    "new_status": {"kind": "model"},
    "new_plan": {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}, "diff": True},
    "new_update_plan": {"all": True, "kind": "workflow"},
    "new_rename_plan": {"kind": "model", "old": "qwen2", "new": "qwen2_base"},
    "new_prove_plan": {"all": True, "kind": "model"},
    "new_undo_plan": {"kind": "model", "name": "qwen3_moe"},
    "new_recover_plan": {},
    "review": {"commit": "HEAD"},
    "review_rules": {"rule": "blocking-in-async"},
    "commit_check": {"message": "Fixed stuff."},
    "commit_suggest": {},
    "commit_changelog": {"range": "HEAD"},
    "harness_list": {},
    "harness_check": {"pages": ["skills/add-reward/SKILL.md"], "no_run": True},
    "harness_sync_plan": {"diff": True},
    "audit": {"packages": ["datasets"], "offline": True},
    "audit_plan": {"packages": ["datasets"], "offline": True},
    "upgrade_impact": {"requests": ["numpy==1.26.0"], "offline": True},
    "upgrade_plan": {"requests": ["numpy==1.26.0"], "offline": True, "no_lock": True},
    "upgrade_latest": {"packages": ["nowhere"], "offline": True},
    "review_pull_request": {"number": 1},
    "docs_zh_check": {"pages": ["docs/concepts.md"]},
    "docs_zh_tasks": {"pages": ["docs/zh/index.md"]},
    "docs_zh_mark_plan": {"pages": ["docs/concepts.md"]},
    "pr_status": {"offline": True},
    "pr_body": {},
    "pr_plan": {},
}
DIGITS = {"kind": "reward", "name": "digits"}


@pytest.fixture
def by_hand(run_command):
    """by_hand(tool, arguments, root): what the command of a tool prints, and its exit code."""

    def run(tool, arguments, root):
        order = make_call(tool, arguments, root)
        module, _, function = order.main.partition(":")
        main = getattr(importlib.import_module(module), function)
        done = run_command(main, order.words, cwd=root, stdin=order.input)
        return done.json, done.code

    return run


def comparable(document):
    """Without what differs from run to run."""
    if isinstance(document, dict):
        return {key: comparable(value) for key, value in document.items() if key not in {"seconds", "detail"}}
    return [comparable(item) for item in document] if isinstance(document, list) else document


def test_every_tool_that_reads_is_called_here():
    assert set(CALLS) >= set(READING)


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.exhaustive)])
async def test_a_client_learns_what_there_is(original, served, mode):
    """In the protocol of 2026, in which each request stands alone, and in the older one with its handshake."""
    async with served(original, mode=mode) as client:
        assert client.server_info.name == "areal"
        assert "new_*" in client.instructions
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {*READING, "more"}
        assert all(tool.description and tool.annotations.read_only_hint for tool in listed.values())
        assert not any(tool.annotations.destructive_hint for tool in listed.values())
        assert listed["upgrade_impact"].annotations.open_world_hint
        assert listed["commit_check"].input_schema["additionalProperties"] is False
    async with served(original, mode=mode, writes=True) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == {*TOOLS, "more"}
        assert not listed["new_apply"].annotations.read_only_hint
        assert listed["new_undo"].annotations.destructive_hint
        assert listed["harness_sync"].annotations.idempotent_hint


QUICK = ["commit_check", "new_schema"]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("names", [QUICK, pytest.param(list(READING), marks=pytest.mark.exhaustive)], ids=len)
async def test_every_tool_answers_what_its_command_prints(original, connected, by_hand, names):
    seen = {}
    async with connected(original) as client:
        for name in names:
            tool = READING[name]
            result = await client.call_tool(name, CALLS[name])
            document, status = by_hand(tool, CALLS[name], original)
            answer = result.structured_content
            assert len(result.content[0].text) + size(answer) <= 25_000, name
            assert comparable(await whole(client, answer)) == comparable(document), name
            assert answer["exit_code"] == status
            assert result.is_error == (status != 0 and status not in tool.verdicts), (name, answer)
            assert 0 < len(result.content[0].text) <= 4_000
            Draft202012Validator(output_schema(tool)).validate(answer)
            if not result.is_error:
                seen[name] = set(tool.fields) - set(answer) - ({"rules"} if name == "review_rules" else set())
    assert {name: missing for name, missing in seen.items() if missing} == {}
    assert len(seen) >= min(22, len(names)), "most of them succeed here"


async def whole(client, answer):
    """An answer as it was before it was cut."""
    parts = []
    for number in range(answer.get("more", {}).get("pages", 0)):
        page = await client.call_tool("more", {"answer": answer["more"]["answer"], "page": number + 1})
        assert not page.is_error
        assert page.structured_content is None
        assert len(page.content[0].text) <= 25_000
        parts += json.loads(page.content[0].text)["parts"]
    return assemble(parts) if parts else answer


async def test_a_long_answer_has_pages(original, served, by_hand):
    arguments = {"kind": "model", "name": "qwen3"}
    async with served(original) as client:
        answer = (await client.call_tool("new_explain", arguments)).structured_content
        assert answer["more"]["pages"] > 1
        assert await whole(client, answer) == by_hand(TOOLS["new_explain"], arguments, original)[0]
        wrong = await client.call_tool("more", {"answer": "nothing"})
        assert wrong.is_error
        assert "call its tool again" in wrong.content[0].text


async def test_the_review_finds_the_bug(original, served):
    async with served(original) as client:
        result = await client.call_tool("review", {"commit": "HEAD"})
    assert not result.is_error
    assert [each["rule"] for each in result.structured_content["findings"]][:1] == ["blocking-in-async"]
    assert "exit code 10: there are findings" in result.content[0].text


@pytest.mark.parametrize("pipes", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
async def test_a_unit_is_planned_generated_and_undone(copy, connected, served, git, pipes):
    arguments = {**DIGITS, "answers": {"style": "boxed"}}
    async with connected(copy, "--allow-writes") if pipes else served(copy, writes=True) as client:
        planned = (await client.call_tool("new_plan", arguments)).structured_content
        assert git(copy, "status", "--porcelain") == ""
        done = (await client.call_tool("new_apply", {**arguments, "no_test": True})).structured_content
        assert (planned["dry_run"], planned["applied"], done["dry_run"], done["applied"]) == (True, False, False, True)
        assert planned["plan"] == done["plan"]
        assert "areal/reward/digits.py" in git(copy, "status", "--porcelain", "-uall")
        undone = await client.call_tool("new_undo", DIGITS)
        assert not undone.is_error
    assert git(copy, "status", "--porcelain") == ""


def test_a_message_is_suggested_for_what_is_staged(copy, by_hand, git):
    (copy / "areal/reward/extra.py").write_text('"""A reward."""\n', encoding="utf-8")
    git(copy, "add", "areal/reward/extra.py")
    document, _ = by_hand(TOOLS["commit_suggest"], {"type": "feat"}, copy)
    assert document["header"].startswith("feat(reward): ")
    assert set(TOOLS["commit_suggest"].fields) <= set(document)


async def test_without_leave_nothing_writes(original, served, git):
    async with served(original) as client:
        for tool in TOOLS.values():
            if tool.writes:
                with pytest.raises(MCPError, match=r"without --allow-writes.*_plan shows"):
                    await client.call_tool(tool.name, dict(tool.example))
    assert git(original, "status", "--porcelain") == ""


async def test_errors_say_what_where_and_how_to_fix_it(original, served):
    async with served(original) as client:
        wrong = await client.call_tool("new_plan", {"kind": "rewrad", "name": "x"})
        assert wrong.is_error
        assert "did you mean 'reward'?" in wrong.structured_content["fix"]
        assert "exit code 2" in wrong.content[0].text
        bad = await client.call_tool("commit_check", {"mesage": "x"})
        assert bad.is_error
        assert bad.structured_content["exit_code"] == 2
        assert bad.structured_content["fix"] == "did you mean 'message'?"
        with pytest.raises(MCPError, match="did you mean 'new_kinds'"):
            await client.call_tool("new_kind", {})


@pytest.mark.exhaustive
@pytest.mark.sample(2)
@pytest.mark.parametrize("text", ["--force; $(touch hacked)\n--force", "\x00", "x" * 90_000, "y" * 3_000_000], ids=len)
async def test_hostile_texts_are_texts(original, served, git, text):
    async with served(original) as client:
        result = await client.call_tool("commit_check", {"message": text})
        assert result.structured_content["exit_code"] in {2, 10}
        others = [("commit_check", "range"), ("review", "base"), ("new_schema", "kind")]
        # A call is a process: three for the text that looks like an option, one for those that are long.
        for name, argument in others if text.startswith("--") else others[:1]:
            refused = await client.call_tool(name, {argument: text})
            assert refused.is_error, name
    assert git(original, "status", "--porcelain") == ""


@pytest.mark.exhaustive
async def test_calls_at_once_are_all_answered(original, served):
    answers = {}
    async with served(original) as client, anyio.create_task_group() as group:

        async def ask(number):
            result = await client.call_tool("commit_check", {"message": f"docs: number {number}"})
            answers[number] = result.structured_content["messages"][0]["header"]

        for number in range(3):
            group.start_soon(ask, number)
    assert answers == {number: f"docs: number {number}" for number in range(3)}


async def begun(family, processes):
    """The processes of a test, when there are so many."""
    with anyio.fail_after(60):
        while len(family()) < processes:
            await anyio.sleep(0.02)
    return family()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.exhaustive)])
async def test_a_cancelled_call_leaves_no_process_and_the_server_goes_on(original, connected, family, gone, mode):
    async with connected(original, mode=mode) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "harness_check", {})
                await begun(family, 2)
                scope.cancel()
        assert scope.cancelled_caught
        assert await gone(1), "only the server is left"
        assert not (await client.call_tool("new_kinds", {})).is_error
    assert await gone(0)


@pytest.mark.exhaustive
async def test_cancelled_during_the_tests_of_a_unit_it_is_told_as_written(copy, served, gone):
    python = copy / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\ntouch .venv/started\nsleep 60\n")
    python.chmod(0o755)
    async with served(copy, writes=True) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "new_apply", {**DIGITS, "answers": {"style": "boxed"}})
                with anyio.fail_after(60):
                    while not (copy / ".venv/started").exists():
                        await anyio.sleep(0.02)
                scope.cancel()
        assert await gone(0)
        (unit,) = (await client.call_tool("new_status", DIGITS)).structured_content["units"]
        assert (unit["state"], unit["proof"]["state"]) == ("written", "written")
        python.write_text("#!/bin/sh\necho '4 passed in 0.01s'\n")
        done = (await client.call_tool("new_prove", DIGITS)).structured_content
        assert [proof["summary"] for proof in done["proofs"]] == ["proven (4 passed)"]
        (unit,) = (await client.call_tool("new_status", DIGITS)).structured_content["units"]
        assert unit["state"] == "clean"


MOMENTS = [0.8, *(pytest.param(seconds, marks=pytest.mark.exhaustive) for seconds in (0.4, 1.2, 1.6, 2.4))]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("seconds", MOMENTS)
async def test_cancelled_while_it_writes_a_tool_leaves_all_or_nothing(copy, served, git, gone, by_hand, seconds):
    async with served(copy, writes=True) as client:
        with anyio.move_on_after(seconds):
            await client.call_tool("new_apply", {**DIGITS, "answers": {"style": "boxed"}, "no_test": True})
        assert await gone(0)
    assert by_hand(TOOLS["new_recover_plan"], {}, copy)[0]["recovered"] == []
    status, _ = by_hand(TOOLS["new_status"], DIGITS, copy)
    if status["ok"]:
        assert [unit["state"] for unit in status["units"]] == ["written"]
        assert by_hand(TOOLS["new_undo"], DIGITS, copy)[1] == 0
    assert git(copy, "status", "--porcelain") == ""


async def test_the_server_survives_a_killed_command(original, served, family):
    found = []
    async with served(original) as client, anyio.create_task_group() as group:

        async def ask():
            found.append(await client.call_tool("new_explain", DIGITS))

        group.start_soon(ask)
        [child, *_] = await begun(family, 1)
        os.kill(child.pid, signal.SIGKILL)
    assert found[0].is_error
    assert (found[0].structured_content["code"], found[0].structured_content["exit_code"]) == ("killed", 137)


async def end_while_it_works(client, family, number):
    """Ends the server with a signal while a command runs, and waits for the command's end."""
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "new_explain", DIGITS)
        server, command, *_ = await begun(family, 2)
        os.kill(server.pid, number)
        with anyio.fail_after(60):
            while Path("/proc", str(command.pid)).exists():
                await anyio.sleep(0.05)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive),
        signal.SIGKILL,
    ],
)
async def test_a_server_that_is_ended_takes_its_commands_along(original, connected, family, gone, number):
    async with connected(original) as client:
        with pytest.raises(ExceptionGroup) as caught:
            await end_while_it_works(client, family, number)
    assert [type(each) for each in caught.value.exceptions] == [MCPError], "the connection was closed"
    assert await gone(0)


@pytest.mark.exhaustive
async def test_long_work_shows_signs_of_life(original, served, family, monkeypatch):
    monkeypatch.setattr("tooling.mcp.server.BEAT_SECONDS", 0.15)
    seen = []

    async def progress(done, total, message):
        seen.append((done, message))

    async with served(original) as client, anyio.create_task_group() as group:
        group.start_soon(lambda: client.call_tool("new_kinds", {}, progress_callback=progress))
        [command, *_] = await begun(family, 1)
        os.kill(command.pid, signal.SIGSTOP)  # as long as it takes
        with anyio.fail_after(60):
            while len(seen) < 3:
                await anyio.sleep(0.02)
        os.kill(command.pid, signal.SIGCONT)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert all(message for _, message in seen)


@pytest.mark.exhaustive
async def test_time_runs_out_and_what_is_too_long_is_cut(original, served):
    async with served(original, timeout=0.1) as client:
        result = await client.call_tool("new_explain", DIGITS)
    assert result.is_error
    assert (result.structured_content["code"], result.structured_content["exit_code"]) == ("timeout", 124)
    assert "--timeout" in result.structured_content["fix"]
    async with served(original, most=5_000) as client:
        result = await client.call_tool("harness_list", {})
    assert not result.is_error
    assert len(result.content[0].text) + size(result.structured_content) <= 5_000
    assert result.structured_content["truncated"]
    assert "cut to fit" in result.content[0].text


@pytest.mark.exhaustive
async def test_standard_output_is_protocol_and_nothing_else(original):
    """By hand, line by line: with Python shouting warnings, every line is a message."""
    words = [sys.executable, "-X", "dev", "-W", "always", "-P", "-m", "tooling.mcp", f"--repo={original}"]
    first = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = [
        {"id": 1, "method": "initialize", "params": first},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "harness_list", "arguments": {}}},
        {"id": 3, "method": "tools/call", "params": {"name": "commit_check", "arguments": {"message": "x\ny"}}},
        {"id": 4, "method": "resources/read", "params": {"uri": "page://AGENTS.md"}},
    ]
    environment = os.environ | {"PYTHONWARNINGS": "always", "PYTHONDEVMODE": "1"}
    async with await anyio.open_process(words, cwd=original, env=environment) as process:
        for message in asked:
            await process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await process.stdin.send(b"this is no JSON\n")
        output = b""
        with anyio.fail_after(60):
            async for part in process.stdout:
                output += part
                if output.count(b"\n") >= 4:
                    break
        await process.stdin.aclose()
        with anyio.fail_after(60):
            async for part in process.stdout:
                output += part
            assert await process.wait() == 0, "a client that leaves is no failure"
    answers = {message["id"]: message for message in map(json.loads, output.splitlines())}
    assert set(answers) == {1, 2, 3, 4}
    assert answers[1]["result"]["serverInfo"]["name"] == "areal"
    assert answers[3]["result"]["structuredContent"]["exit_code"] == 10
    assert "# Working in this repository" in answers[4]["result"]["contents"][0]["text"]


async def test_pages_can_be_read_and_nothing_else(copy, served):
    (copy / "skills/add-reward/references").mkdir(exist_ok=True)
    (copy / "skills/add-reward/references/passwords.md").symlink_to("/etc/passwd")
    async with served(copy) as client:
        addresses = {one.uri for one in (await client.list_resources()).resources}
        assert {"page://AGENTS.md", "skill://add-reward", "expert://fsdp"} <= addresses
        text = (await client.read_resource("skill://add-reward")).contents[0].text
        assert text == (copy / "skills/add-reward/SKILL.md").read_text(encoding="utf-8")
        for address in ["skill://../AGENTS.md", "skill://add-reward/../../pyproject.toml", "file:///etc/passwd", ""]:
            with pytest.raises(MCPError, match="there is no page"):
                await client.read_resource(address)
        with pytest.raises(MCPError, match="leads out of the repository"):
            await client.read_resource("skill://add-reward/references/passwords.md")


async def test_every_skill_is_a_prompt(original, served):
    async with served(original) as client:
        prompts = {one.name: one for one in (await client.list_prompts()).prompts}
        assert set(prompts) == {path.parent.name for path in original.glob("skills/*/SKILL.md")}
        found = await client.get_prompt("add-reward", {"task": "a reward for digits"})
        text = found.messages[0].content.text
        assert "areal-new reward" in text
        assert text.endswith("The task: a reward for digits\n")
        with pytest.raises(MCPError, match="did you mean 'add-reward'"):
            await client.get_prompt("add-rewrad")
