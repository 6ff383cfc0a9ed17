"""The server as a client sees it: the SDK's own client, over real pipes, in a real repository."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from jsonschema import Draft202012Validator
from mcp import MCPError

from tooling.mcp.processes import descendants
from tooling.mcp.tools.call import make_call, output_schema
from tooling.mcp.tools.table import offered

TOOLS = offered(writes=True).tools
READING = offered(writes=False).tools
MODES = ["auto", "legacy"]
"""The protocol of 2026, in which each request stands alone, and the older one with its handshake."""
CALLS = {
    "new_kinds": {},
    "new_schema": {"kind": "dataset"},
    "new_explain": {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}},
    "new_status": {"kind": "model"},
    "new_plan": {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}, "diff": True},
    "new_update_plan": {"all": True, "kind": "workflow"},
    "new_rename_plan": {"kind": "model", "old": "qwen2", "new": "qwen2_base"},
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


def by_hand(tool, arguments, root):
    """What the command prints, and its exit code."""
    call = make_call(tool, arguments, root)
    module, _, function = tool.main.partition(":")
    program = f"import sys; from {module} import {function} as run; sys.exit(run(sys.argv[1:]))"
    words = [sys.executable, "-P", "-c", program, *call.words]
    done = subprocess.run(words, cwd=root, input=call.input.encode(), capture_output=True, check=False)
    return json.loads(done.stdout), done.returncode


async def both(first, second):
    """The results of two things done at once."""
    results = [None, None]

    async def do(place, work):
        results[place] = await work

    async with anyio.create_task_group() as group:
        group.start_soon(do, 0, first)
        group.start_soon(do, 1, second)
    return results


def comparable(document):
    """Without what differs from run to run."""
    if isinstance(document, dict):
        return {key: comparable(value) for key, value in document.items() if key not in {"seconds", "detail"}}
    return [comparable(item) for item in document] if isinstance(document, list) else document


def test_every_tool_that_reads_is_called_here():
    assert set(CALLS) >= set(READING)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_learns_what_there_is(original, connected, mode):
    async with connected(original, mode=mode) as client:
        assert client.server_info.name == "areal"
        assert "new_*" in client.instructions
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == set(READING)
        for tool in listed.values():
            assert tool.annotations.read_only_hint
            assert not tool.annotations.destructive_hint
            assert tool.description
            Draft202012Validator.check_schema(tool.input_schema)
        assert listed["upgrade_impact"].annotations.open_world_hint
        assert listed["commit_check"].input_schema["additionalProperties"] is False


async def test_with_leave_to_write_the_tools_say_that_they_do(original, connected):
    async with connected(original, "--allow-writes") as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(listed) == set(TOOLS)
        assert not listed["new_apply"].annotations.read_only_hint
        assert listed["new_undo"].annotations.destructive_hint
        assert listed["harness_sync"].annotations.idempotent_hint


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_every_tool_answers_what_its_command_prints(original, connected):
    seen = dict.fromkeys(READING, frozenset())
    async with connected(original) as client:
        for name, tool in READING.items():
            result, (document, status) = await both(
                client.call_tool(name, CALLS[name]),
                anyio.to_thread.run_sync(by_hand, tool, CALLS[name], original),
            )
            answer = result.structured_content
            assert comparable(answer) == comparable(document), name
            assert answer["exit_code"] == status
            assert result.is_error == (status != 0 and status not in tool.verdicts), (name, answer)
            assert 0 < len(result.content[0].text) <= 4_000
            Draft202012Validator(output_schema(tool)).validate(answer)
            seen[name] = frozenset(answer) if status == 0 or status in tool.verdicts else frozenset()
    told = {name: set(READING[name].fields) - fields for name, fields in seen.items() if fields}
    told["review_rules"].discard("rules")  # of the list without a rule
    assert {name: missing for name, missing in told.items() if missing} == {}
    assert len(told) >= 22, "most of them succeed here"


async def test_the_review_finds_the_bug(original, connected):
    async with connected(original) as client:
        result = await client.call_tool("review", {"commit": "HEAD"})
        assert not result.is_error
        assert [each["rule"] for each in result.structured_content["findings"]][:1] == ["blocking-in-async"]
        assert "exit code 10: there are findings" in result.content[0].text


async def test_a_unit_is_planned_generated_and_taken_back(copy, connected, git):
    arguments = {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}}
    async with connected(copy, "--allow-writes") as client:
        planned = (await client.call_tool("new_plan", arguments)).structured_content
        assert git(copy, "status", "--porcelain") == ""
        done = (await client.call_tool("new_apply", {**arguments, "no_test": True})).structured_content
        assert (planned["dry_run"], planned["applied"], done["dry_run"], done["applied"]) == (True, False, False, True)
        assert planned["plan"] == done["plan"]
        assert "areal/reward/digits.py" in git(copy, "status", "--porcelain", "-uall")
        undone = await client.call_tool("new_undo", {"kind": "reward", "name": "digits"})
        assert not undone.is_error
        assert git(copy, "status", "--porcelain") == ""


async def test_copies_are_compiled(copy, connected):
    target = copy / ".claude/skills/add-reward/SKILL.md"
    before = target.read_bytes()
    target.unlink()
    async with connected(copy, "--allow-writes") as client:
        result = await client.call_tool("harness_sync", {})
        assert not result.is_error
    assert target.read_bytes() == before


async def test_a_message_is_suggested_for_what_is_staged(copy, connected, git):
    (copy / "areal/reward/extra.py").write_text('"""A reward."""\n', encoding="utf-8")
    git(copy, "add", "areal/reward/extra.py")
    async with connected(copy) as client:
        result = await client.call_tool("commit_suggest", {"type": "feat"})
    assert not result.is_error
    assert result.structured_content["header"].startswith("feat(reward): ")
    assert set(TOOLS["commit_suggest"].fields) <= set(result.structured_content)


async def test_without_leave_nothing_writes(copy, connected, git):
    async with connected(copy) as client:
        for tool in TOOLS.values():
            if tool.writes:
                with pytest.raises(MCPError, match=r"without --allow-writes.*_plan shows"):
                    await client.call_tool(tool.name, dict(tool.example))
    assert git(copy, "status", "--porcelain") == ""


async def test_errors_say_what_where_and_how_to_fix_it(original, connected):
    async with connected(original) as client:
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


HOSTILE = ["--force", "; touch hacked", "$(touch hacked)", "a\nb\n--force", "\x00", "x" * 90_000, "y" * 3_000_000]


async def test_hostile_texts_are_texts(copy, connected, git):
    async with connected(copy) as client:
        for text in HOSTILE:
            result = await client.call_tool("commit_check", {"message": text})
            assert result.structured_content["exit_code"] in {2, 10}, text[:20]
            for name, argument in [("commit_check", "range"), ("review", "base"), ("new_schema", "kind")]:
                refused = await client.call_tool(name, {argument: text})
                assert refused.is_error, (name, text[:20])
    assert git(copy, "status", "--porcelain") == ""


async def test_two_calls_at_once_are_both_answered(original, connected):
    answers = {}
    async with connected(original) as client, anyio.create_task_group() as group:

        async def ask(number):
            message = f"docs: number {number}"
            result = await client.call_tool("commit_check", {"message": message})
            answers[number] = result.structured_content["messages"][0]["header"]

        for number in range(6):
            group.start_soon(ask, number)
    assert answers == {number: f"docs: number {number}" for number in range(6)}


@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.exhaustive)])
async def test_a_cancelled_call_leaves_no_process_and_the_server_goes_on(original, connected, gone, mode):
    async with connected(original, mode=mode) as client:
        with anyio.move_on_after(1.0) as scope:  # it takes several
            await client.call_tool("harness_check", {})
        assert scope.cancelled_caught
        assert await gone(1), "only the server is left"
        assert not (await client.call_tool("new_kinds", {})).is_error
    assert await gone(0)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_cancelled_while_it_writes_a_tool_leaves_all_or_nothing(copy, connected, git, gone):
    arguments = {"kind": "reward", "name": "digits", "answers": {"style": "boxed"}}
    async with connected(copy, "--allow-writes") as client:
        for seconds in (0.5, 1.5, 2.5, 3.5, 4.5):
            with anyio.move_on_after(seconds):
                await client.call_tool("new_apply", arguments)
            assert await gone(1)
            pending = (await client.call_tool("new_recover_plan", {})).structured_content["recovered"]
            assert pending == []
            status = (await client.call_tool("new_status", {"kind": "reward", "name": "digits"})).structured_content
            if status["ok"]:
                assert [unit["state"] for unit in status["units"]] == ["clean"]
                assert not (await client.call_tool("new_undo", {"kind": "reward", "name": "digits"})).is_error
            assert git(copy, "status", "--porcelain") == ""


async def test_the_server_survives_a_killed_command(original, connected, family):
    async with connected(original) as client, anyio.create_task_group() as group:
        found = []

        async def ask():
            found.append(await client.call_tool("new_explain", {"kind": "reward", "name": "digits"}))

        group.start_soon(ask)
        with anyio.fail_after(20):
            while len(family()) < 2:
                await anyio.sleep(0.02)
        [child] = descendants(family()[0].pid)[:1]
        os.kill(child.pid, signal.SIGKILL)
        with anyio.fail_after(20):
            while not found:
                await anyio.sleep(0.02)
        assert found[0].is_error
        assert (found[0].structured_content["code"], found[0].structured_content["exit_code"]) == ("killed", 137)
        assert not (await client.call_tool("new_kinds", {})).is_error


async def end_while_it_works(client, family, number):
    """Ends the server with a signal while a command runs, and waits for the command's end."""
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "new_explain", {"kind": "reward", "name": "digits"})
        with anyio.fail_after(20):
            while len(family()) < 2:
                await anyio.sleep(0.02)
        server, command = family()[:2]
        os.kill(server.pid, number)
        with anyio.fail_after(20):
            while Path("/proc", str(command.pid)).exists():
                await anyio.sleep(0.05)


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


async def test_long_work_shows_signs_of_life(original, connected, family):
    seen = []

    async def progress(done, total, message):
        seen.append((done, total, message))

    async with connected(original) as client, anyio.create_task_group() as group:
        arguments = {"kind": "reward", "name": "digits"}
        group.start_soon(lambda: client.call_tool("new_explain", arguments, progress_callback=progress))
        with anyio.fail_after(20):
            while len(family()) < 2:
                await anyio.sleep(0.02)
            _, command = family()[:2]
            os.kill(command.pid, signal.SIGSTOP)  # as long as it takes
            while len(seen) < 3:
                await anyio.sleep(0.02)
        os.kill(command.pid, signal.SIGCONT)
    assert [done for done, _, _ in seen] == sorted({done for done, _, _ in seen})
    assert all(message for _, _, message in seen)


async def test_time_runs_out_and_says_so(original, connected):
    async with connected(original, "--timeout=0.3") as client:
        result = await client.call_tool("new_explain", {"kind": "reward", "name": "digits"})
    assert result.is_error
    assert (result.structured_content["code"], result.structured_content["exit_code"]) == ("timeout", 124)
    assert "--timeout" in result.structured_content["fix"]


async def test_what_is_too_long_is_cut_and_says_so(original, connected):
    async with connected(original, "--max-output=5000") as client:
        result = await client.call_tool("harness_list", {})
    assert not result.is_error
    assert len(json.dumps(result.structured_content)) <= 5_000
    assert result.structured_content["truncated"]
    assert "cut to fit" in result.content[0].text


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
        with anyio.fail_after(20):
            async for part in process.stdout:
                output += part
    answers = {message["id"]: message for message in map(json.loads, output.splitlines())}
    assert set(answers) == {1, 2, 3, 4}
    assert answers[1]["result"]["serverInfo"]["name"] == "areal"
    assert answers[3]["result"]["structuredContent"]["exit_code"] == 10
    assert "# Working in this repository" in answers[4]["result"]["contents"][0]["text"]


async def test_pages_can_be_read_and_nothing_else(copy, connected):
    (copy / "skills/add-reward/references").mkdir(exist_ok=True)
    (copy / "skills/add-reward/references/passwords.md").symlink_to("/etc/passwd")
    async with connected(copy) as client:
        addresses = {one.uri for one in (await client.list_resources()).resources}
        assert {"page://AGENTS.md", "skill://add-reward", "expert://fsdp"} <= addresses
        text = (await client.read_resource("skill://add-reward")).contents[0].text
        assert text == (copy / "skills/add-reward/SKILL.md").read_text(encoding="utf-8")
        for address in ["skill://../AGENTS.md", "skill://add-reward/../../pyproject.toml", "file:///etc/passwd", ""]:
            with pytest.raises(MCPError, match="there is no page"):
                await client.read_resource(address)
        with pytest.raises(MCPError, match="leads out of the repository"):
            await client.read_resource("skill://add-reward/references/passwords.md")


async def test_every_skill_is_a_prompt(original, connected):
    async with connected(original) as client:
        prompts = {one.name: one for one in (await client.list_prompts()).prompts}
        skills = {one["name"] for one in (await client.call_tool("harness_list", {})).structured_content["skills"]}
        assert set(prompts) == skills
        found = await client.get_prompt("add-reward", {"task": "a reward for digits"})
        text = found.messages[0].content.text
        assert "areal-new reward" in text
        assert text.endswith("The task: a reward for digits\n")
        with pytest.raises(MCPError, match="did you mean 'add-reward'"):
            await client.get_prompt("add-rewrad")
