"""Environments on a server: nothing is done twice, leases end, and whatever a server does wrong is a fault."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from areal.api import AssistantTurn, ConfigError, FaultError, FaultKind
from areal.environment.config import HostConfig
from areal.environment.pool import EnvironmentPool
from areal.environment.server import EnvironmentServer, ServerConfig
from areal.utils import stats

KEY = secrets.token_urlsafe(32)


@contextlib.asynccontextmanager
async def serving(name="worlds:Counter", options=None, host=None, **config):
    server = EnvironmentServer(name, options or {}, HostConfig(**(host or {})), ServerConfig(**config))
    async with server.running():
        yield server


def pool_of(address, name="worlds:Counter", options=None, **config):
    return EnvironmentPool(name, options or {}, HostConfig(kind="http", url=address, **config))


async def play(pool, *answers, seed=7):
    async with pool.episode() as environment:
        first = await environment.reset({"question": "count"}, seed)
        return first, [await environment.step(AssistantTurn(text=answer)) for answer in answers]


async def fault_of(pool, *answers):
    with pytest.raises(FaultError) as caught:
        await play(pool, *(answers or ("1",)))
    return caught.value


class Client:
    """Speaks the protocol by hand."""

    def __init__(self, session, address, headers=None):
        self.session, self.address, self.headers = session, address, headers or {}
        self.path = f"/episodes/{secrets.token_hex(16)}"

    async def send(self, method, path, body=None, **options):
        options = {"headers": self.headers} | options
        async with self.session.request(method, self.address + path, json=body, **options) as response:
            return response.status, await response.read()

    async def begin(self):
        name = self.path.rpartition("/")[2]
        assert (await self.send("POST", "/episodes", {"id": name}))[0] == 201
        return await self.send("POST", f"{self.path}/reset", {"row": {}, "seed": 7})

    async def step(self, number, text):
        answer = {"text": text, "reasoning": "", "calls": []}
        return await self.send("POST", f"{self.path}/step", {"step": number, "answer": answer})


@contextlib.asynccontextmanager
async def talking(address, **options):
    async with aiohttp.ClientSession() as session:
        yield Client(session, address, **options)


def kind_in(reply):
    return json.loads(reply[1])["error"]["kind"]


@pytest.mark.parametrize("kind", ["process", pytest.param("subprocess", marks=pytest.mark.exhaustive)])
async def test_a_server_gives_the_same_episode_as_this_process(kind):
    expected = await play(EnvironmentPool("worlds:Counter", {}, HostConfig()), "1", "2")
    async with serving(host={"kind": kind}) as server:
        pool = pool_of(server.address)

        assert await play(pool, "1", "2") == expected
        assert await play(pool, "1", "2") == expected
        assert pool.num_leaked == 0


async def test_a_step_that_is_sent_again_is_answered_from_memory():
    async with serving() as server, talking(server.address) as client:
        await client.begin()
        first = await client.step(1, "1")
        again = await client.step(1, "1")
        together = await asyncio.gather(client.step(2, "1"), client.step(2, "1"), client.step(2, "1"))

        assert first == again
        assert json.loads(first[1])["result"]["info"] == {"total": 1.0}
        assert len(set(together)) == 1
        assert json.loads(together[0][1])["result"]["info"] == {"total": 2.0}


async def test_steps_out_of_order_and_other_steps_of_a_number_are_refused():
    async with serving() as server, talking(server.address) as client:
        await client.begin()
        await client.step(1, "1")

        replies = [await client.step(1, "2"), await client.step(3, "1"), await client.step(0, "1")]
        reset = await client.send("POST", f"{client.path}/reset", {"row": {}, "seed": 8})

        assert [kind_in(reply) for reply in (*replies, reset)] == ["conflict", "conflict", "bad_request", "conflict"]
        assert json.loads((await client.step(2, "1"))[1])["result"]["info"] == {"total": 2.0}


class LossyProxy:
    """Passes connections on, and loses the answers to the first `lose` requests whose path ends in `ending`."""

    def __init__(self, target, ending, lose):
        self.target, self.ending, self.left = urlsplit(target), ending, lose
        self.seen = 0

    async def handle(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
                )
                request = head + await reader.readexactly(size)
                meant = head.split(b" ")[1].endswith(self.ending.encode())
                self.seen += meant
                up, down = await asyncio.open_connection(self.target.hostname, self.target.port)
                down.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
                answer = await up.read()
                down.close()
                if meant and self.left:
                    self.left -= 1
                    break
                writer.write(answer)
                break
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self):
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("ending", ["/episodes", "/reset", "/step"])
async def test_answers_that_are_lost_are_asked_for_again_and_nothing_happens_twice(ending):
    expected = await play(EnvironmentPool("worlds:Counter", {}, HostConfig()), "1", "2")
    async with serving(host={"max_environments": 1}) as server:
        proxy = LossyProxy(server.address, ending, 2)
        async with proxy.running() as address:
            assert await play(pool_of(address), "1", "2") == expected
        assert proxy.left == 0
        assert await play(pool_of(server.address), "1", "2") == expected


@pytest.mark.exhaustive
async def test_an_episode_waits_while_the_server_is_full_and_that_is_no_time_of_the_environment():
    async with serving(host={"max_environments": 1}) as server:
        pool = pool_of(server.address, reset_seconds=2.0)

        async def slow():
            async with pool.episode() as environment:
                await environment.reset({}, 0)
                await asyncio.sleep(2.5)

        with stats.scope() as recorded:
            await asyncio.gather(slow(), slow())

        assert max(recorded["environment/wait_seconds"]) >= 2.4
        assert max(recorded["environment/seconds"]) < 2.0


async def test_a_server_that_stays_full_is_a_timeout():
    async with serving(host={"max_environments": 1}) as server, talking(server.address) as client:
        await client.begin()
        fault = await fault_of(pool_of(server.address, capacity_seconds=0.2))

        assert fault.kind is FaultKind.ENVIRONMENT_TIMEOUT
        assert "in use for 0.2 s" in fault.message


@pytest.mark.exhaustive
async def test_an_episode_that_nobody_asks_for_is_closed_and_one_whose_policy_thinks_is_kept():
    async with serving(host={"max_environments": 2}, lease_seconds=3.0) as server, talking(server.address) as client:
        await client.begin()
        async with pool_of(server.address).episode() as environment:
            await environment.reset({}, 7)
            while not server.num_expired:
                await asyncio.sleep(0.05)
            assert (await environment.step(AssistantTurn(text="2"))).info == {"total": 2.0}

        assert server.num_expired == 1
        assert kind_in(await client.step(1, "1")) == "missing"
        assert await client.send("DELETE", client.path) == (204, b"")


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("raise", FaultKind.ENVIRONMENT_FAILED, "ValueError: a bug of mine"),
        ("nan", FaultKind.ENVIRONMENT_FAILED, "reward is nan"),
        ("role", FaultKind.ENVIRONMENT_FAILED, "'narrator'"),
        ("flood", FaultKind.ENVIRONMENT_FAILED, "more than 1048576"),
        ("number", FaultKind.ENVIRONMENT_FAILED, "finite numbers"),
        ("hang", FaultKind.ENVIRONMENT_TIMEOUT, "step() took more than 0.3 s"),
    ],
)
async def test_what_an_environment_does_wrong_on_a_server_is_a_fault_and_the_server_serves_on(what, kind, words):
    options = {"what": what}
    limits = {"step_seconds": 0.3 if what == "hang" else 60.0, "max_environments": 1}
    async with serving("worlds:Misbehaving", options, host=limits) as server:
        for _ in range(2):
            fault = await fault_of(pool_of(server.address, "worlds:Misbehaving", options))

            assert (fault.kind, fault.kind.retryable) == (kind, True)
            assert words in fault.message


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["die", pytest.param("spin", marks=pytest.mark.exhaustive)])
async def test_the_process_of_an_environment_on_a_server_may_die(what):
    options, host = (
        {"what": what},
        {"kind": "subprocess", "step_seconds": 2.0 if what == "spin" else 60.0, "max_environments": 1},
    )
    async with serving("worlds:Misbehaving", options, host=host) as server:
        kinds = {(await fault_of(pool_of(server.address, "worlds:Misbehaving", options))).kind for _ in range(2)}

        assert kinds == {FaultKind.ENVIRONMENT_FAILED if what == "die" else FaultKind.ENVIRONMENT_TIMEOUT}


async def test_an_environment_that_hangs_while_closing_keeps_its_place_no_longer_than_its_limit():
    options, host = {"what": "hang", "where": "close"}, {"close_seconds": 0.2, "max_environments": 1}
    async with serving("worlds:Misbehaving", options, host=host) as server:
        pool = pool_of(server.address, "worlds:Misbehaving", options)
        for _ in range(2):
            _, results = await play(pool, "1", "2")

            assert [result.reward for result in results] == [0.1, 0.2]
        assert pool.num_leaked == 0


async def test_a_step_after_the_end_and_after_a_failure_is_no_observation():
    async with serving() as server, talking(server.address) as client:
        await client.begin()
        await client.step(1, "3")

        assert kind_in(await client.step(2, "1")) == "environment_failed"
        assert kind_in(await client.step(2, "1")) == "environment_failed"
        assert kind_in(await client.step(3, "1")) == "conflict"


@contextlib.asynccontextmanager
async def pretending(step, **description):
    """A server that answers everything right, except for steps."""

    async def handle(request):
        if request.path == "/":
            facts = {"protocol": 1, "environment": "worlds:Counter", "options": {}, **description}
            return web.json_response(facts)
        if request.path.endswith("/reset"):
            observation = {"messages": [{"role": "user", "content": "?"}], "tools": []}
            return web.json_response({"step": 0, "observation": observation})
        return web.Response(status=204) if request.method == "DELETE" else await step(request)

    async def route(request):
        return web.json_response({}, status=201) if request.path == "/episodes" else await handle(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", route)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def result(**changes):
    plain = {
        "observation": {"messages": [], "tools": []},
        "reward": 0.5,
        "terminated": True,
        "truncated": False,
        "info": {},
    }
    return json.dumps({"step": 1, "result": plain | changes})


LIES = {
    "another step": (result().replace('"step": 1', '"step": 2'), "answers step 2"),
    "no step": ("{}", "answers step None"),
    "10 MB": ("[" + " " * 10_000_000 + "]", "more than 1048576 bytes"),
    "NaN": (result().replace("0.5", "NaN"), "not JSON"),
    "a text as reward": (result(reward="1.0"), "finite number"),
    "a reward that overflows": (result().replace("0.5", "1e999"), "finite number"),
    "a word as flag": (result(terminated="no"), "expected true or false"),
    "info of words": (result(info={"score": "high"}), "finite numbers"),
    "a role that is none": (result(observation={"messages": [{"role": "god", "content": ""}], "tools": []}), "'god'"),
    "messages that are none": (result(observation={"messages": "hello", "tools": []}), "step()"),
    "no result": ('{"step": 1}', "step()"),
    "no JSON": ("<html>", "not JSON"),
    "depth": ("[" * 100_000, "not JSON"),
    "bytes": ("\udcff", "not JSON"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_server_that_answers_nonsense_is_a_fault(lie):
    text, words = LIES[lie]

    async def step(request):
        body = text.encode(errors="surrogateescape")
        return web.Response(body=body, content_type="application/json")

    async with pretending(step) as address:
        fault = await fault_of(pool_of(address))

    assert fault.kind is FaultKind.ENVIRONMENT_FAILED
    assert words in fault.message


@pytest.mark.parametrize("status", [302, 404, 418, 500, 503])
async def test_a_status_that_is_no_answer_is_a_fault_and_nobody_is_sent_elsewhere(status):
    async def step(request):
        assert "elsewhere" not in request.path
        return web.Response(status=status, text="{}", headers={"Location": "/elsewhere"})

    async with pretending(step) as address:
        fault = await fault_of(pool_of(address))

    assert fault.kind is FaultKind.ENVIRONMENT_FAILED
    assert f"status {status}" in fault.message


async def test_a_server_that_never_answers_is_a_timeout():
    async def step(request):
        await asyncio.sleep(1)

    async with pretending(step) as address:
        fault = await fault_of(pool_of(address, step_seconds=0.2))

    assert fault.kind is FaultKind.ENVIRONMENT_TIMEOUT


async def test_a_server_that_is_gone_is_a_fault_that_is_retried():
    async with serving() as server:
        pool = pool_of(server.address, close_seconds=1.0)
    fault = await fault_of(pool)

    assert fault.kind is FaultKind.ENVIRONMENT_FAILED
    assert fault.kind.retryable
    assert "is lost" in fault.message


@pytest.mark.parametrize(
    ("name", "options", "description", "words"),
    [
        ("worlds:Adder", {}, {}, "serves 'worlds:Counter'"),
        ("worlds:Counter", {"goal": 5}, {}, "with options {}"),
        ("worlds:Counter", {}, {"protocol": 2}, "protocol 2, expected 1"),
    ],
)
async def test_a_server_of_something_else_ends_the_run(name, options, description, words):
    async with pretending(None, **description) as address:
        with pytest.raises(ConfigError, match=words.replace("{", r"\{")):
            await play(pool_of(address, name, options), "1")


async def test_a_key_lets_in_and_nothing_else_does(monkeypatch):
    async with serving(key=KEY) as server:
        for name, value in (("RIGHT_KEY", KEY), ("WRONG_KEY", "x" * 40)):
            monkeypatch.setenv(name, value)
        assert await play(pool_of(server.address, key_variable="RIGHT_KEY"), "1", "2")
        for variables in ({"key_variable": "WRONG_KEY"}, {}):
            with pytest.raises(ConfigError, match="key is missing or wrong"):
                await play(pool_of(server.address, **variables), "1")
        async with talking(server.address) as client:
            for header in ("", "Bearer", f"Basic {KEY}", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x"):
                reply = await client.send("DELETE", client.path, headers={"Authorization": header})
                assert (reply[0], kind_in(reply)) == (401, "unauthorized")


async def test_a_server_without_a_key_answers_to_its_own_names_only():
    async with serving() as server, talking(server.address) as client:
        reply = await client.send("GET", "/", headers={"Host": "games.example.org"})

        assert kind_in(reply) == "unauthorized"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "bad_request"),
        (b"[1]", "bad_request"),
        (b"[" * 100_000, "bad_request"),
        (b'{"id": "short"}', "bad_request"),
        (b'{"id": "../../../../etc/passwd"}', "bad_request"),
        (b'{"id": ' + b"1" * 20_000 + b"}", "too_large"),
    ],
)
async def test_bodies_that_make_no_sense_are_refused(body, kind):
    async with (
        serving(max_body_bytes=150_000 if kind == "bad_request" else 10_000) as server,
        talking(server.address) as client,
    ):
        async with client.session.post(f"{server.address}/episodes", data=body) as response:
            assert kind_in((response.status, await response.read())) == kind
        assert (await client.begin())[0] == 200


async def test_an_address_for_everybody_needs_a_key_on_both_sides():
    with pytest.raises(ConfigError, match="there is no key"):
        ServerConfig(host="0.0.0.0")
    with pytest.raises(ConfigError, match="at least 32"):
        ServerConfig(host="0.0.0.0", key="short")
    with pytest.raises(ConfigError, match="another machine"):
        HostConfig(kind="http", url="http://games.example.org:80")
    with pytest.raises(ConfigError, match="holds 0 characters"):
        pool_of("http://games.example.org:80", key_variable="NOT_SET_ANYWHERE")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://a:b@localhost", "http://[", "http://localhost/?x=1"],
)
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(ConfigError, match=r"host\.url"):
        HostConfig(kind="http", url=url)
