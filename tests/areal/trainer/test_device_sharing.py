"""One device for servers and learner: one of them has it at a time, in one order, and never both."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

from areal.api import ConfigError, EngineError
from areal.engine.train.lending import LentMemory
from areal.infra.directory import open_directory, read_key
from areal.trainer.configuration.source import load_config
from areal.trainer.device_sharing import DeviceTurn, DeviceTurns, SharedDevice
from areal.trainer.device_starts import LearnersDevice, note_owner
from areal.trainer.policy_models import PolicyModels
from areal.trainer.ppo import PPOTrainer
from areal.trainer.rank_group import RankGroup
from areal.trainer.server_command import SERVER_KIND

ROUND = (
    DeviceTurn.LEARNER_ASLEEP,
    DeviceTurn.SERVERS_WAKING,
    DeviceTurn.SAMPLING,
    DeviceTurn.DRAINING,
    DeviceTurn.SERVERS_ASLEEP,
    DeviceTurn.LEARNER_AWAKE,
    DeviceTurn.LEARNING,
)
SHARED = ["rollout.engine=vllm", "servers.sleep_level=1", "servers.sleep_learner=true",
          "rollout.max_head_offpolicyness=0"]  # fmt: skip
LEARNER, SERVERS, LIMIT = 4 * 3000, 10_000, 13_000


def test_turns_go_round_in_one_order():
    turns = DeviceTurns()
    for turn in ROUND * 3:
        turns.enter(turn)
    assert turns.turn is DeviceTurn.LEARNING
    assert turns.log[-7:] == list(ROUND)


@pytest.mark.parametrize("at", range(7))
def test_any_other_order_is_refused_before_anything_is_done(at):
    turns, done = DeviceTurns(), []
    for turn in ROUND[:at]:
        turns.enter(turn)
    before = turns.turn
    for wrong in set(DeviceTurn) - {ROUND[at]}:
        with pytest.raises(EngineError, match="comes next"):
            turns.enter(wrong, after=lambda: done.append(1))
    assert (turns.turn, done) == (before, [])


def test_a_step_that_fails_leaves_the_turn_where_it_was():
    turns = DeviceTurns()

    def fail():
        raise EngineError("a server does not sleep")

    with pytest.raises(EngineError, match="does not sleep"):
        turns.enter(DeviceTurn.LEARNER_ASLEEP, after=fail)
    assert turns.turn is DeviceTurn.LEARNING


class Device:
    """Memory that learner and servers share, with room for either and not for both."""

    def __init__(self):
        self.held, self.peak, self.log = 0, 0, []

    def take(self, who, num_bytes):
        self.held += num_bytes
        self.peak = max(self.peak, self.held)
        self.log.append(f"{who} takes")
        assert self.held <= LIMIT, f"out of memory: {self.log}"

    def give(self, who, num_bytes):
        self.held -= num_bytes
        self.log.append(f"{who} frees")


class LearnersPart:
    """`DeviceMemory` of the learner."""

    def __init__(self, device):
        self.device, self.own = device, LEARNER
        device.take("learner", LEARNER)

    def allocate(self, num_bytes):
        self.own += num_bytes
        self.device.take("learner", num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    def freed(self, num_bytes):
        self.own -= num_bytes
        self.device.give("learner", num_bytes)

    def settle(self):
        pass

    def held(self):
        return self.own


class Learner(PolicyModels):
    """Parameters that are changed by a step, in the learner's part of the device."""

    def __init__(self, device):
        self.values = torch.arange(3000.0)
        self._lent = LentMemory(torch.device("cpu"), lambda: [self.values], memory=LearnersPart(device))

    def step(self):
        self._require_awake()
        self.values.add_(1)


class Engine:
    """Servers, as a shared device sees them."""

    def __init__(self, device):
        self.device, self.weights = device, {}

    def sleep(self):
        self.device.give("servers", SERVERS)

    def update_weights(self, weights, before_waking):
        self.weights = {name: value.clone() for name, value in weights.items()}
        before_waking()
        assert weights == {}, "what is on the device would stay there"
        self.device.take("servers", SERVERS)


def learners_device(folder):
    """The learner's side of the lock, which it has taken."""
    learners = LearnersDevice(load_config(None, SHARED).config, folder)
    learners.begin()
    return learners


def test_one_at_a_time_has_the_device_and_the_values_are_those_of_a_device_of_ones_own(tmp_path):
    device = Device()
    shared = SharedDevice(RankGroup().create(Learner, device), learners_device(tmp_path))
    learner, engine = shared._models.local, Engine(device)
    alone = torch.arange(3000.0)
    for step in range(3):
        if step:
            shared.to_learner(engine)
            learner.step()
            alone.add_(1)
        weights = {"w": learner.values.detach()}
        shared.publishing(weights)
        engine.update_weights(weights, shared.to_servers)
        shared.sampling()
        assert torch.equal(engine.weights["w"], alone)
        with pytest.raises(EngineError, match="the learner is asleep"):
            learner.step()
        assert shared.metrics() == {"memory/trainer_asleep_mb": 0.0, "memory/trainer_in_host_mb": LEARNER / 2**20}
    assert device.peak == LEARNER < LIMIT < LEARNER + SERVERS
    first, *rounds = device.log
    assert first == "learner takes"
    assert rounds == ["learner frees", "servers takes", *["servers frees", "learner takes", "learner frees",
                      "servers takes"] * 2]  # fmt: skip


def test_a_learner_that_would_take_a_device_in_use_is_refused(tmp_path):
    device = Device()
    shared = SharedDevice(RankGroup().create(Learner, device), learners_device(tmp_path))
    engine = Engine(device)
    with pytest.raises(EngineError, match="'learner asleep' comes next"):
        shared.to_learner(engine)
    assert device.log == ["learner takes"]


def test_servers_of_other_learners_in_a_directory_are_left_alone(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    key.chmod(0o600)
    where = f"file://{tmp_path}/meet"
    given = [f"servers.directory={where}", f"servers.directory_key={key}", f"servers.device_lock={tmp_path}/lock"]
    config = load_config(None, [*SHARED, "weights.carrier=broadcast", *given]).config
    note_owner(config, "earlier")
    calls = []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(open_directory(where, read_key(str(key))))
        for name in ("free", "earlier", "another"):
            server = stack.enter_context(held_by("" if name == "free" else name, calls))
            directory.announce(SERVER_KIND, name, {"url": server}, 30)
        learners = LearnersDevice(config, tmp_path)
        learners.begin()
        learners.close()
    assert sorted(each for each in calls if each[1] != "areal_identity") == [
        ("", "areal_release"), ("", "is_sleeping"), ("earlier", "areal_release"), ("earlier", "is_sleeping"),
    ]  # fmt: skip


def test_a_server_without_the_worker_extension_does_not_stop_a_learner(tmp_path):
    calls = []
    with held_by(None, calls) as url:
        given = [f"servers.addresses=['{url}']", f"servers.device_lock={tmp_path}/lock", "weights.carrier=broadcast"]
        learners = LearnersDevice(load_config(None, [*SHARED, *given]).config, tmp_path)
        learners.begin()
        learners.close()
    assert calls == [(None, "is_sleeping"), (None, "areal_identity")]


def test_the_device_is_given_up_also_when_an_engine_does_not_close(tmp_path):
    def fail():
        raise OSError("the server hangs")

    trainer = object.__new__(PPOTrainer)
    trainer.executor = trainer.sources = SimpleNamespace(close=lambda: None)
    trainer.engine, trainer.evaluator, trainer._separate = SimpleNamespace(close=fail), None, None
    trainer._learners_device, trainer._thresholds = learners_device(tmp_path), gc.get_threshold()
    with pytest.raises(OSError, match="hangs"):
        trainer.__exit__()
    learners_device(tmp_path).close()


@contextlib.contextmanager
def held_by(owner, calls):
    """A server that sleeps, and writes down what it is asked. owner: None without our worker extension."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            calls.append((owner, self.path.strip("/")))
            self.answer({"is_sleeping": True})

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append((owner, asked["method"]))
            self.answer({"results": [] if owner is None else [{"owner": owner, "incarnation": "1"}]})

        def answer(self, content):
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["servers.sleep_level=0"], "servers never lend the device back"),
        (["archon={}"], "archon splits the learner over processes"),
        (["weights.carrier=shards"], "weights.carrier shards reads weights from the device"),
        (["servers.addresses=['http://127.0.0.1:8000']"], "may start at any time"),
        (["rollout.max_head_offpolicyness=1"], "take turns"),
    ],
)
def test_runs_in_which_they_cannot_take_turns_are_refused(changes, message):
    assert load_config(None, SHARED).config.servers.sleep_learner
    with pytest.raises(ConfigError, match=message):
        load_config(None, [*SHARED, *changes])
