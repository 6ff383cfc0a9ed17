"""Environments in the process and in processes of their own: limits, faults, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from areal.api import AssistantTurn, ConfigError, FaultError, FaultKind
from areal.environment.check import check_environment
from areal.environment.config import HostConfig, host_config
from areal.environment.pool import EnvironmentPool
from areal.utils import stats

HOSTS = ["process", "subprocess"]


def play(name, options=None, *, answers=("1", "2"), seed=7, **config):
    """(observations, results, pool) of one episode."""
    pool = EnvironmentPool(name, options or {}, HostConfig(**config))

    async def episode():
        async with pool.episode() as environment:
            first = await environment.reset({"question": "count"}, seed)
            return first, [await environment.step(AssistantTurn(text=answer)) for answer in answers]

    first, results = asyncio.run(episode())
    return first, results, pool


def fault_of(name, options=None, **config):
    with pytest.raises(FaultError) as caught:
        play(name, options, **config)
    return caught.value


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


def test_both_hosts_give_the_same_episode():
    (first, results, pool), (other_first, other_results, _) = (play("worlds:Counter", kind=kind) for kind in HOSTS)

    assert dict(first.messages[0]) == {"role": "user", "content": "count 331"}
    assert [result.reward for result in results] == [0.1, 0.2]
    assert [result.terminated for result in results] == [False, True]
    assert results[1].info == {"total": 3}
    assert [dict(one.messages[0]) for one in (other_first, *(r.observation for r in other_results))] == [
        dict(one.messages[0]) for one in (first, *(r.observation for r in results))
    ]
    assert [(r.reward, r.terminated, r.info) for r in other_results] == [
        (r.reward, r.terminated, r.info) for r in results
    ]
    assert pool.num_leaked == 0


@pytest.mark.parametrize("kind", ["process", pytest.param("subprocess", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raise", "ValueError: a bug of mine"),
        ("nan", "reward is nan"),
        ("role", "'narrator'"),
        ("none", "returned str"),
    ],
)
def test_what_an_environment_does_wrong_is_a_fault_that_is_retried(kind, what, words):
    fault = fault_of("worlds:Misbehaving", {"what": what}, kind=kind)

    assert fault.kind is FaultKind.ENVIRONMENT_FAILED
    assert fault.kind.retryable
    assert words in fault.message
    assert "step()" in fault.message


@pytest.mark.parametrize("kind", ["process", pytest.param("subprocess", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_a_call_that_hangs_is_given_up_at_its_limit(kind, where):
    seconds = 0.2 if kind == "process" else 3  # the start of a process counts

    fault = fault_of("worlds:Misbehaving", {"what": "hang", "where": where}, kind=kind, **{f"{where}_seconds": seconds})

    assert fault.kind is FaultKind.ENVIRONMENT_TIMEOUT
    assert fault.kind.retryable
    assert f"{where}() took more than {seconds:g} s" in fault.message


def test_a_process_that_computes_for_ever_is_killed_and_the_slot_serves_again():
    pool = EnvironmentPool(
        "worlds:Misbehaving", {"what": "spin"}, HostConfig(kind="subprocess", step_seconds=0.5, max_environments=1)
    )

    async def twice():
        kinds = []
        for _ in range(2):
            try:
                async with pool.episode() as environment:
                    await environment.reset({}, 0)
                    await environment.step(AssistantTurn(text="1"))
            except FaultError as fault:
                kinds.append(fault.kind)
        return kinds

    assert asyncio.run(twice()) == [FaultKind.ENVIRONMENT_TIMEOUT] * 2
    assert pool.num_leaked == 0


def test_a_process_that_dies_says_how_and_what_it_last_wrote():
    fault = fault_of("worlds:Misbehaving", {"what": "die"}, kind="subprocess")

    assert fault.kind is FaultKind.ENVIRONMENT_FAILED
    assert "signal SIGKILL" in fault.message
    assert "going down" in fault.message


def test_what_an_environment_prints_does_not_mix_with_its_answers():
    _, results, _ = play("worlds:Misbehaving", {"what": "print"}, kind="subprocess")

    assert [result.reward for result in results] == [0.1, 0.2]


def test_an_environment_sees_no_arguments_of_its_host():
    first, _, _ = play("worlds:Telling", kind="subprocess")

    assert first.messages[0]["content"] == "[]"


def test_a_process_is_killed_with_everything_it_started(tmp_path):
    marker = tmp_path / "pid"

    fault = fault_of("worlds:Misbehaving", {"what": "fork", "marker": str(marker)}, kind="subprocess", step_seconds=3.0)

    assert fault.kind is FaultKind.ENVIRONMENT_TIMEOUT
    assert wait_until_gone(int(marker.read_text()))


@pytest.mark.parametrize("what", [pytest.param("nothing", marks=pytest.mark.exhaustive), "spin"])
def test_a_process_ends_with_its_trainer_however_that_dies(what, tmp_path):
    program = (
        "import asyncio, sys; from areal.api import AssistantTurn; from areal.environment.pool import EnvironmentPool\n"
        "from areal.environment.config import HostConfig\n"
        "async def main():\n"
        f"    pool = EnvironmentPool('worlds:Misbehaving', {{'what': {what!r}}}, HostConfig(kind='subprocess'))\n"
        "    async with pool.episode() as environment:\n"
        "        await environment.reset({}, 0)\n"
        "        print(environment._environment.pid, flush=True)\n"
        "        await environment.step(AssistantTurn(text='1'))\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    # What it leaves when it is killed belongs to this test.
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)}
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=variables)
    assert trainer.stdout is not None
    guard = int(trainer.stdout.readline())
    (worker,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    assert is_running(guard)
    assert is_running(worker)
    own_folder = Path(os.readlink(f"/proc/{guard}/cwd"))
    assert own_folder.is_dir()
    trainer.kill()
    trainer.communicate()

    assert wait_until_gone(int(worker))
    assert wait_until_gone(guard)
    assert not own_folder.exists()


def test_slots_are_limited_and_waiting_is_no_time_of_the_environment():
    pool = EnvironmentPool("worlds:Counter", {}, HostConfig(max_environments=2))
    open_now, most = 0, 0

    async def episode():
        nonlocal open_now, most
        async with pool.episode() as environment:
            open_now += 1
            most = max(most, open_now)
            await environment.reset({}, 0)
            await asyncio.sleep(1.0)
            open_now -= 1
            return environment.seconds

    async def many():
        return await asyncio.gather(*(episode() for _ in range(4)))

    with stats.scope() as recorded:
        seconds = asyncio.run(many())

    assert most == 2
    assert max(seconds) < 1.0
    assert max(recorded["environment/wait_seconds"]) >= 0.9


def test_an_environment_that_does_not_close_is_counted_and_hides_nothing():
    with stats.scope() as recorded:
        _, results, pool = play("worlds:Misbehaving", {"what": "hang", "where": "close"}, close_seconds=0.1)

    assert len(results) == 2
    assert pool.num_leaked == 1
    assert recorded["environment/leaked"] == [1.0]


@pytest.mark.exhaustive
def test_an_environment_that_blocks_the_loop_is_named_while_it_does(caplog):
    with caplog.at_level(logging.WARNING, logger="areal"):
        play("worlds:Misbehaving", {"what": "block"}, block_seconds=0.15)

    (message,) = {record.getMessage().partition(" for ")[0] for record in caplog.records}
    assert message == "environment worlds:Misbehaving has kept the event loop busy"
    assert "in step()" in caplog.records[0].getMessage()


@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the kernel does not count waiting")
def test_an_environment_that_waits_for_a_processor_is_not_named(caplog):
    """A thread of the lowest priority shares its processor with a program that never rests."""
    processor = min(os.sched_getaffinity(0))
    busy = f"import os; os.sched_setaffinity(0, [{processor}]); print(flush=True)\nwhile True: pass"

    def starved():
        os.sched_setaffinity(0, [processor])  # of this thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        play("worlds:Slow", answers=["1"], block_seconds=0.15)
        seconds.append(time.thread_time())

    seconds = []
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as rival:
        rival.stdout.readline()
        with caplog.at_level(logging.WARNING, logger="areal"):
            thread = threading.Thread(target=starved)
            thread.start()
            thread.join(60)
        rival.kill()

    assert seconds[0] < 0.15
    assert not caplog.records


def test_a_cancelled_episode_closes_its_environment(tmp_path):
    pool = EnvironmentPool("worlds:Misbehaving", {"what": "hang"}, HostConfig(kind="subprocess"))
    pids = []

    async def cancelled():
        async def episode():
            async with pool.episode() as environment:
                pids.append(environment._environment.pid)
                await environment.reset({}, 0)
                await environment.step(AssistantTurn(text="1"))

        task = asyncio.create_task(episode())
        while not pids:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())

    assert wait_until_gone(pids[0])


def test_processes_see_few_variables_and_a_folder_of_their_own(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    pool = EnvironmentPool("worlds:Counter", {}, HostConfig(kind="subprocess"))

    async def look():
        async with pool.episode() as environment:
            process = environment._environment
            with open(f"/proc/{process.pid}/environ", encoding="utf-8") as file:
                return file.read(), os.readlink(f"/proc/{process.pid}/cwd")

    variables, folder = asyncio.run(look())

    assert "SECRET_TOKEN" not in variables
    assert "areal-environment-" in folder


@pytest.mark.parametrize("kind", HOSTS)
def test_an_environment_that_cannot_be_built_ends_the_run_with_a_message(kind):
    with pytest.raises(ConfigError, match="cannot be built"):
        play("worlds:Counter", {"nonsense": 1}, kind=kind)


def test_settings_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match="belongs to subprocess"):
        host_config({"kind": "process", "python": "python3"})
    with pytest.raises(ConfigError, match="unknown key"):
        host_config({"step_second": 3})


def checked(name, options=None, **config):
    found = asyncio.run(check_environment(name, options or {}, HostConfig(**config)))
    return {result.name: (result.ok, result.detail) for result in found}


def test_the_check_passes_an_environment_that_keeps_its_contract():
    found = checked("worlds:Counter")

    assert {name for name, (ok, _) in found.items() if not ok} == set()
    assert {name for name, (_, detail) in found.items() if detail} == set()


def test_the_check_finds_what_depends_on_more_than_the_seed():
    found = checked("worlds:Misbehaving", {"what": "random"})

    assert {name for name, (ok, _) in found.items() if not ok} == {"equal_seeds", "concurrent_episodes"}
    assert "differ after turn 0" in found["equal_seeds"][1]
    assert found["step_after_end"] == (True, "not seen: no episode ended; give answers that end one")


def test_the_check_finds_a_close_that_raises():
    found = checked("worlds:Misbehaving", {"what": "raise", "where": "close"})

    assert found["close"] == (False, "close() raised ValueError: a bug of mine")
    assert not found["leaks"][0]


@pytest.mark.exhaustive
def test_a_process_finds_modules_where_the_trainer_does(tmp_path):
    """A copy of areal that shadows the installed one in the trainer does so in the environment's process too."""
    folder = Path(__file__).parent
    (tmp_path / "areal").symlink_to(folder.parents[2] / "areal")
    (tmp_path / "where.py").write_text(
        "import areal\nfrom worlds import Counter, CounterEpisode, said\n"
        "class Where(Counter):\n    def create(self):\n        return Episode(3)\n"
        "class Episode(CounterEpisode):\n    async def reset(self, row, seed):\n        return said(areal.__file__)\n"
    )
    program = (
        "import asyncio\nfrom areal.environment.config import HostConfig\n"
        "from areal.environment.pool import EnvironmentPool\n"
        "async def main():\n"
        "    async with EnvironmentPool('where:Where', {}, HostConfig(kind='subprocess')).episode() as environment:\n"
        "        print((await environment.reset({}, 0)).messages[0]['content'])\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(folder)])},
    )  # fmt: skip

    assert Path(done.stdout.strip()) == tmp_path / "areal" / "__init__.py"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("reuse", "seen"), [(True, ["made 1"] * 3), (False, ["made 1", "made 2", "made 3"])])
def test_an_environment_that_resets_fully_may_serve_several_episodes_ended_or_not(reuse, seen):
    pool = EnvironmentPool("worlds:Lasting", {}, HostConfig(kind="subprocess", reuse=reuse, max_environments=1))

    async def episode(*answers):
        async with pool.episode() as environment:
            first = await environment.reset({}, 0)
            totals = [(await environment.step(AssistantTurn(text=answer))).info["total"] for answer in answers]
            return first.messages[0]["content"], totals

    async def episodes():
        return [await episode("1"), await episode("1", "1"), await episode("1", "2")]

    played = asyncio.run(episodes())

    assert [first for first, _ in played] == seen
    assert [totals for _, totals in played] == [[1], [1, 2], [1, 3]]


def test_an_environment_that_does_not_say_so_is_not_reused():
    with pytest.raises(ConfigError, match="CounterEpisode does not say that it resets fully"):
        play("worlds:Lasting", {"says": False}, kind="subprocess", reuse=True)
    with pytest.raises(ConfigError, match="belongs to subprocess"):
        HostConfig(reuse=True)


@pytest.mark.exhaustive
def test_the_check_finds_an_environment_that_only_says_that_it_resets_fully():
    found = checked("worlds:Lasting", {"forgetful": True}, kind="subprocess", reuse=True)

    assert not found["equal_seeds"][0]
    assert {
        name for name, (ok, _) in checked("worlds:Lasting", kind="subprocess", reuse=True).items() if not ok
    } == set()
