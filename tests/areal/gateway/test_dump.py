"""The dump of requests: what it holds, who may read it, and how it ends."""

from __future__ import annotations

import json
import stat

import pytest
from serving import run, serving, user

from areal.api import ConfigError
from areal.gateway.dump import RequestDump


def lines(folder):
    return [json.loads(line) for place in folder.iterdir() for line in place.read_text().splitlines()]


def test_requests_and_answers_are_written_for_their_owner_alone(tmp_path):
    folder = tmp_path / "requests"

    async def talk():
        async with serving(lambda _: "the answer", dump_folder=str(folder)) as served:
            messages = await served.say([user("the question")])
            await served.say([*messages, user("on")], stream=False)
            await served.post("/v1/messages", {"messages": [user("x")], "max_tokens": 5, "model": "m", "stream": True})
            served.engine.context_length = 3
            await served.post("/v1/chat/completions", {"messages": [user("too long")]})
            return served.session

    session = run(talk())
    first, second, third, fourth = lines(folder)
    assert first["request"]["messages"] == [user("the question")]
    assert first["answers"][0] | {"id": ""} == {
        "id": "", "continues_by": "root", "reason": "first", "text": "the answer", "stop_reason": "stop",
    }  # fmt: skip
    assert first["delivered"]
    assert second["answers"][0]["continues_by"] == "message"
    assert third["path"] == "/v1/messages"
    assert "too long" in fourth["refused"]
    (place,) = folder.iterdir()
    assert place.name == f"{session.name}.jsonl"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert session.key not in place.read_text()


def test_a_folder_that_others_may_read_is_refused(tmp_path):
    tmp_path.chmod(0o750)
    with pytest.raises(ConfigError, match="open to others"):
        RequestDump(tmp_path, most_bytes=10)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        RequestDump(tmp_path / "file", most_bytes=10)


def test_it_ends_at_its_limit_and_fails_nobody(tmp_path, caplog):
    folder = tmp_path / "requests"
    dump = RequestDump(folder, most_bytes=250)
    for index in range(100):
        dump.write("one", {"text": "x" * 80, "index": index})
    dump.close()
    assert [line["index"] for line in lines(folder)] == [0, 1]
    assert [record.getMessage() for record in caplog.records] == [
        f"dump of requests in {folder}: its limit dump_bytes is reached: nothing more is written"
    ]


def test_a_folder_that_vanishes_is_a_warning(tmp_path, caplog):
    folder = tmp_path / "requests"
    dump = RequestDump(folder, most_bytes=250)
    folder.rmdir()
    dump.write("one", {})
    dump.close()
    assert "cannot be written" in caplog.text
