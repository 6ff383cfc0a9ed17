"""Processes of a job find each other through a service or a folder: entries live as long as their owners."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from areal.api import BusyError, ConfigError, EngineError, UsageError
from areal.infra.directory import open_directory, serve_directory
from areal.infra.directory.channel import Channel, ChannelError

KEY = b"of these tests and nobody else's"
OWNER = """
import sys, time
from areal.infra.directory import open_directory
directory = open_directory(sys.argv[1], bytes.fromhex(sys.argv[2]))
directory.announce("server", "killed", {"url": "http://a:1"}, float(sys.argv[3]))
print("announced", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["tcp", "file"])
def url(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/meet here".replace(" ", "%20")
        return
    with serve_directory("127.0.0.1", KEY) as server:
        yield server.url


@pytest.fixture
def opened(url):
    """Opens the directory as another process would."""
    with contextlib.ExitStack() as stack:
        yield lambda key=KEY, **options: stack.enter_context(open_directory(url, key, **options))


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_what_one_announces_the_others_see_until_it_is_withdrawn(opened):
    one, other = opened(), opened()
    first = one.announce("server", "vllm-0", {"url": "http://n1:8000", "note": "é\n"}, 30)
    one.announce("rank", "0", {}, 30)
    assert other.entries("server") == {"vllm-0": {"url": "http://n1:8000", "note": "é\n"}}
    first.update({"url": "http://n1:8001"})
    assert other.entries("server") == {"vllm-0": {"url": "http://n1:8001"}}
    first.withdraw()
    first.withdraw()
    assert (other.entries("server"), other.entries("rank")) == ({}, {"0": {}})
    one.close()
    assert other.entries("rank") == {}


@pytest.mark.exhaustive
def test_entries_outlive_their_lease_while_their_owner_lives_and_end_when_it_is_killed(opened, url):
    watcher = opened()
    command = [sys.executable, "-c", OWNER, url, KEY.hex(), "3"]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout.readline() == "announced\n"
        until = time.monotonic() + 5
        while time.monotonic() < until:
            assert watcher.entries("server") == {"killed": {"url": "http://a:1"}}
            time.sleep(0.1)
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    killed = time.monotonic()
    eventually(lambda: watcher.entries("server") == {})
    assert time.monotonic() - killed < 20


def test_a_caller_waits_until_enough_are_there_and_is_named_those_that_came(opened):
    one, other = opened(), opened()
    found = []
    waiter = threading.Thread(target=lambda: found.append(other.wait_for("rank", 3, 60)))
    waiter.start()
    for rank in range(3):
        assert not found
        one.announce("rank", f"r{rank}", {"rank": rank}, 30)
    waiter.join(60)
    assert found == [{f"r{rank}": {"rank": rank} for rank in range(3)}]
    with pytest.raises(EngineError, match=r"3 of 4 entries of kind 'rank' .* after 0.1 s: r0, r1, r2"):
        other.wait_for("rank", 4, 0.1)


def test_the_newest_announcement_of_a_name_wins_and_the_one_before_learns_of_it(opened):
    old, new = opened(), opened()
    first = old.announce("server", "vllm-0", {"life": 1}, 0.9)
    second = new.announce("server", "vllm-0", {"life": 2}, 30)
    eventually(lambda: "announced by another process" in first.lost)
    with pytest.raises(EngineError, match="announced by another process"):
        first.update({"life": 3})
    first.withdraw()
    assert (new.entries("server"), second.lost) == ({"vllm-0": {"life": 2}}, "")


def test_an_exclusive_name_has_one_owner_at_a_time(opened):
    one, other = opened(), opened()
    held = one.announce("run", "gsm8k", {}, 30, exclusive=True)
    with pytest.raises(BusyError, match="run gsm8k belongs to another live process"):
        other.announce("run", "gsm8k", {}, 30, exclusive=True)
    held.withdraw()
    other.announce("run", "gsm8k", {}, 30, exclusive=True)


@pytest.mark.parametrize(
    ("kind", "name", "value", "lease", "expected"),
    [
        ("server", "../escape", {}, 30, "letters, digits"),
        ("a/b", "x", {}, 30, "letters, digits"),
        ("server", ".hidden", {}, 30, "not starting with"),
        ("server", "x\n", {}, 30, "letters, digits"),
        ("server", "x", {"v": {1, 2}}, 30, "JSON"),
        ("server", "x", {"v": float("nan")}, 30, "JSON"),
        ("server", "x", {"v": "y" * 70_000}, 30, "at most 65536"),
        ("server", "x", {}, 0, "lease_seconds"),
        ("server", "x", {}, float("nan"), "lease_seconds"),
    ],
)
def test_what_cannot_be_stored_is_refused(opened, kind, name, value, lease, expected):
    directory = opened()
    with pytest.raises(UsageError, match=expected):
        directory.announce(kind, name, value, lease)


@pytest.mark.parametrize("wrong", ["http://a:1", "tcp://a", "tcp://a:1/x", "tcp://a:x", "file://a/b", "file:///", ""])
def test_other_urls_are_refused(wrong):
    with pytest.raises(ConfigError, match="expected tcp://HOST:PORT or file:///FOLDER"):
        open_directory(wrong, KEY)


def test_the_service_answers_nobody_without_the_key():
    with (
        serve_directory("127.0.0.1", KEY) as server,
        open_directory(server.url, b"another key that is long enough") as stranger,
    ):
        with pytest.raises(EngineError, match="does not accept this job's key"):
            stranger.entries("server")
        with pytest.raises(UsageError, match="expected one address"):
            serve_directory("0.0.0.0", KEY)


def test_a_service_without_the_key_is_not_believed():
    """It greets like a directory and accepts any proof."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            link, _ = listener.accept()
            with link, link.makefile("rwb") as file:
                file.write(Channel(b"some key of somebody else", is_server=True).greeting())
                file.flush()
                file.readline()
                file.write(json.dumps({"proof": "0" * 64}).encode() + b"\n")

        thread = threading.Thread(target=pretend)
        thread.start()
        with (
            open_directory(f"tcp://127.0.0.1:{listener.getsockname()[1]}", KEY) as directory,
            pytest.raises(EngineError, match="does not have this job's key"),
        ):
            directory.announce("server", "x", {}, 30)
        thread.join()


def test_changed_repeated_and_missing_lines_end_a_connection():
    def meet():
        server, client = Channel(KEY, is_server=True), Channel(KEY, is_server=False)
        client.confirm(server.admit(client.answer(server.greeting())))
        return server, client

    server, client = meet()
    line = client.seal('{"do": 1}')
    assert server.unseal(line) == {"do": 1}
    with pytest.raises(ChannelError):
        server.unseal(line)  # once more
    server, client = meet()
    with pytest.raises(ChannelError):
        server.unseal(client.seal('{"do": 1}').replace(b"1}", b"2}"))
    server, client = meet()
    client.seal("{}")
    with pytest.raises(ChannelError):
        server.unseal(client.seal("{}"))  # the first one is missing
    server, client = meet()
    with pytest.raises(ChannelError):
        client.unseal(client.seal("{}"))  # sent back


def test_garbage_and_silence_disturb_nobody():
    with serve_directory("127.0.0.1", KEY) as server, contextlib.ExitStack() as stack:
        host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
        visitors = [stack.enter_context(socket.create_connection((host, port))) for _ in range(30)]
        for number, visitor in enumerate(visitors[10:]):  # the first ten say nothing
            with contextlib.suppress(ConnectionError):
                visitor.sendall(
                    [
                        b"\x00\xff" * 100 + b"\n",
                        b"GET / HTTP/1.1\r\n\r\n",
                        b'{"nonce": 1, "proof": []}\n',
                        b"x" * 300_000,
                    ][number % 4]
                )
        with open_directory(server.url, KEY) as directory:
            directory.announce("server", "x", {"v": 1}, 30)
            assert directory.entries("server") == {"x": {"v": 1}}
            talker = Channel(KEY, is_server=False)
            link = stack.enter_context(socket.create_connection((host, port)))
            file = stack.enter_context(link.makefile("rwb"))
            file.write(talker.answer(file.readline()))
            file.flush()
            talker.confirm(file.readline())
            for request in (
                {"do": "fall over"},
                [],
                {"do": "put", "lease": {"kind": 3}, "new": True, "exclusive": False},
            ):
                file.write(talker.seal(json.dumps(request)))
                file.flush()
                assert "error" in talker.unseal(file.readline())
            assert directory.entries("server") == {"x": {"v": 1}}


@pytest.mark.exhaustive
def test_a_service_that_starts_again_has_all_entries_after_one_round_of_renewals():
    server = serve_directory("127.0.0.1", KEY)
    port = int(server.url.rpartition(":")[2])
    with open_directory(server.url, KEY, timeout_seconds=3.0) as directory:
        mine = directory.announce("server", "x", {"v": 1}, 1.0)
        server.close()
        server.close()
        eventually(lambda: "has not answered" in mine.lost)
        with pytest.raises(EngineError, match="is the first process of the job alive"):
            directory.entries("server")
        with serve_directory("127.0.0.1", KEY, port=port):
            assert directory.wait_for("server", 1, 60) == {"x": {"v": 1}}
            eventually(lambda: mine.lost == "")


def test_files_that_this_job_did_not_write_are_ignored(tmp_path):
    with open_directory(f"file://{tmp_path}/meet", KEY) as directory:
        directory.announce("server", "good", {"v": 1}, 30)
        folder = tmp_path / "meet/server"
        stored = json.loads((folder / "good.json").read_text())
        stored["lease"]["value"] = {"v": 2}
        (folder / "forged.json").write_text(json.dumps(stored))
        (folder / "other-name.json").write_bytes((folder / "good.json").read_bytes())
        (folder / "garbage.json").write_bytes(b"\xff{")
        (folder / ".good.json.tmp-1").write_text("half")
        assert directory.entries("server") == {"good": {"v": 1}}
        with open_directory(f"file://{tmp_path}/meet", b"another key that is long enough") as stranger:
            assert stranger.entries("server") == {}
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="writable and support flock"):
        open_directory(f"file://{tmp_path}/file", KEY)


def test_the_age_of_a_file_is_told_by_the_clock_of_its_folder(tmp_path, monkeypatch):
    """The host's clock is ten years off; leases neither end nor last longer."""
    with open_directory(f"file://{tmp_path}/meet", KEY) as directory:
        monkeypatch.setattr(time, "time", lambda: 3e8)
        directory.announce("server", "x", {}, 30)
        assert directory.entries("server") == {"x": {}}
        path = tmp_path / "meet/server/x.json"
        os.utime(path, (path.stat().st_mtime - 31,) * 2)
        assert directory.entries("server") == {}


def meet_in_threads(count, seconds):
    """Announce and wait for all others in as many threads; return the seconds from the first call to the last."""
    results = []
    with serve_directory("127.0.0.1", secrets.token_bytes(32)) as server, contextlib.ExitStack() as stack:
        key = server._key
        directories = [open_directory(server.url, key, timeout_seconds=seconds) for _ in range(count)]
        port = int(server.url.rpartition(":")[2])
        silent, garbage = (stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2))
        garbage.sendall(b"\x00" * 1000)

        def meet(rank):
            directories[rank].announce("rank", f"{rank:04d}", {"rank": rank, "address": f"10.0.0.1:{rank}"}, 60)
            results.append(len(directories[rank].wait_for("rank", count, seconds)))

        threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(count)]
        begun = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - begun
        assert silent.recv(10, socket.MSG_PEEK), "the silent visitor was greeted, and nothing else happened to it"
        for directory in directories:
            directory.close()
    assert results == [count] * count
    return took


def test_many_ranks_meet_although_one_visitor_is_silent_and_one_sends_garbage():
    assert meet_in_threads(64, 60) < 60


@pytest.mark.exhaustive
def test_a_thousand_ranks_meet_within_seconds():
    assert min(meet_in_threads(1024, 100) for _ in range(2)) < 50
