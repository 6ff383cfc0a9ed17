"""Rules about paths, kinds and leftovers, from fixes of seven repositories: each finds its cases and nothing beside
them."""

from __future__ import annotations

import pytest

CLASS = "class A:\n    def __init__(self, size, fps=None):\n"
TYPED = "from typing import NotRequired, TypedDict\n\n\n"
ABOVE = "class Base:\n    async def pause(self, now):\n        await now\n\n\n"
SPLIT = "class Other:\n    def pause(self, now):\n        return now\n\n\n"

CASES: dict[str, tuple[list[str], list[str]]] = {
    "set-in-a-branch": (
        [
            "def f(x, wanted):\n    if not wanted:\n        weights = None\n    return x, weights\n",
            "def f(self, kind):\n    if kind == 'auto':\n        device = self.device\n        size = 1\n"
            "    drop(self)\n    self.put(kind, device=device)\n",
            "def f(rank, dist):\n    if rank == 0:\n        rows = load()\n    dist.broadcast(rows, 0)\n",
        ],
        [
            "def f(x, wanted):\n    weights = x\n    if not wanted:\n        weights = None\n    return x, weights\n",
            "def f(x, wanted):\n    if not wanted:\n        weights = None\n    else:\n        weights = x\n"
            "    return weights\n",
            "def f(x, wanted):\n    if not wanted:\n        weights = None\n        return weights\n    return x\n",
            "def f(rows, wanted):\n    for row in rows:\n        if row > wanted:\n            best = row\n"
            "        print(best)\n",
            "def f(x, wanted):\n    if wanted:\n        y = x\n    return y if wanted else None\n",
        ],
    ),
    "sync-override": (
        [
            f"{ABOVE}class A(Base):\n    def pause(self, now):\n        self.paused = now\n",
            f"{ABOVE}class Mid(Base):\n    x = 1\n\n\nclass A(Mid):\n    def pause(self, now):\n        return None\n",
            f"{ABOVE}class A(Base):\n    def pause(self, now):\n        return 0\n",
        ],
        [
            f"{ABOVE}class A(Base):\n    async def pause(self, now):\n        self.paused = now\n",
            f"{ABOVE}class A(Base):\n    def pause(self, now):\n        return self.inner.pause(now)\n",
            f"{ABOVE}class A(Base):\n    def pause(self, now):\n        raise NotImplementedError\n",
            f"{SPLIT}class A(Other):\n    def pause(self, now):\n        self.paused = now\n",
        ],
    ),
    "always-none": (
        [
            "def f(rows, wanted):\n    streamer = None\n    if wanted:\n        rows.append(Streamer())\n"
            "    if streamer is not None:\n        streamer.end()\n",
            "def f(rows):\n    best = None\n    for row in rows:\n        print(row)\n    return best.name\n",
            "def f(rows):\n    masks = None\n    return masks[0] if masks else rows\n",
        ],
        [
            "def f(rows):\n    best = None\n    for row in rows:\n        best = row\n    return best.name\n",
            "def f(rows):\n    cache = None\n    return model(rows, cache)\n",
            "def f(rows):\n    best = None\n\n    def g(row):\n        nonlocal best\n        best = row\n\n"
            "    g(rows)\n"
            "    return best.name\n",
        ],
    ),
    "number-as-tensor": (
        [
            "def f(loss):\n    return loss.item().detach()\n",
            "def f(loss):\n    return loss.mean().item().cpu()\n",
            "def f(x):\n    return x.sum().detach().item().to('cpu')\n",
        ],
        [
            "def f(loss):\n    return loss.detach().item()\n",
            "def f(x):\n    return x.item().is_integer()\n",
            "def f(row):\n    return row.item('a').to('cpu')\n",
        ],
    ),
    "submodule-not-imported": (
        [
            "import importlib\n\nHERE = importlib.util.find_spec('vllm') is not None\n",
            "import logging\n\nH = logging.handlers.RotatingFileHandler('a')\n",
            "import concurrent\n\nP = concurrent.futures.ThreadPoolExecutor()\n",
        ],
        [
            "import importlib.util\n\nHERE = importlib.util.find_spec('vllm') is not None\n",
            "import logging\nfrom logging.handlers import QueueHandler\n\n"
            "H = logging.handlers.RotatingFileHandler('a')\n",
            "import importlib\n\nM = importlib.import_module('vllm')\n",
        ],
    ),
    "open-default": (
        [
            "def f(parser):\n    parser.add_argument('--host', default='0.0.0.0')\n",
            "class C:\n    host: str = '0.0.0.0'\n",
            "def serve(port, bind_address='0.0.0.0'):\n    return port\n",
        ],
        [
            "def f(parser):\n    parser.add_argument('--host', default='127.0.0.1')\n",
            "def f(host):\n    return 'localhost' if host == '0.0.0.0' else host\n",
            "VERSION = '0.0.0.0'\n",
        ],
    ),
    "pickled-file": (
        [
            "import pickle\ndef f(path):\n    with open(path, 'rb') as file:\n        return pickle.load(file)\n",
            "import cloudpickle\ndef f(file):\n    return cloudpickle.load(file)\n",
            "from dill import load\ndef f(file):\n    return load(file)\n",
        ],
        [
            "import json\ndef f(file):\n    return json.load(file)\n",
            "import pickle\ndef f(rows, file):\n    pickle.dump(rows, file)\n",
            "def f(pickled):\n    return pickled.load()\n",
        ],
    ),
}


@pytest.fixture(scope="module")
def said(shared_world):
    """What one review of all cases reports."""
    return shared_world.found_in_cases({rule: [*cases] for rule, cases in CASES.items()})


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_its_cases_and_nothing_beside_them(said, rule):
    assert said[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}


def test_a_target_anywhere_is_looked_for(world):
    world.commit({"pkg/__init__.py": "", "pkg/tools/__init__.py": "", "pkg/tools/mcp.py": "class Tool:\n    x = 1\n"})
    right = "def g(register):\n    register('b', 'pkg.tools.mcp:Tool')\n    register('c', 'other.tools:Tool')\n"
    right += "    print('at: pkg.tools')\n"
    world.commit({"pkg/use.py": f"{right}\n\ndef f(register):\n    register('a', 'pkg.mcp:Tool')\n"})
    assert world.found() == [("registry-target", "pkg/use.py", 8)]


def test_the_arguments_of_actors_fit_their_class(world):
    world.commit(
        {"pkg/__init__.py": "", "pkg/a.py": "class A:\n    def __init__(self, cluster):\n        self.c = cluster\n"}
    )
    head = "import ray\nfrom pkg.a import A\n\n"
    world.commit(
        {
            "pkg/bad.py": f"{head}a = ray.remote(A).options(name='a').remote(\n    group=1,\n)\n",
            "pkg/good.py": f"{head}a = ray.remote(num_gpus=1)(A).remote(cluster=1)\nb = a.go.remote(group=1)\n",
        }
    )
    assert world.found() == [("signature-mismatch", "pkg/bad.py", 5)]


def test_a_version_made_a_text_is_a_text(world):
    world.commit({"a.py": "import torch\nNEW = str(torch.__version__) >= '2.6'\nOLD = torch.__version__ >= '2.6'\n"})
    assert world.found() == [("version-as-text", "a.py", 2)]


def test_one_of_two_conditions_may_say_that_it_is_none(world):
    text = "def f(name, policy):\n    if name == 'eval' and policy is None:\n        raise ValueError(policy.type)\n"
    world.commit({"a.py": text, "b.py": text.replace(" and ", " or ")})
    assert world.found() == [("guard-contradicts", "a.py", 3)]


def test_what_is_only_said_to_be_killed_is_still_waited_for(world):
    body = "class L:\n    def stop(self):\n        print('SIGKILL', self.p)\n        for p in self.jobs:\n"
    world.commit(
        {
            "a.py": f"{body}            p.wait()\n",
            "b.py": f"{body}            p.kill()\n            p.wait()\n",
            "c.py": "class L:\n    def __del__(self):\n        self.wait()\n",
        }
    )
    assert {path for rule, path, _ in world.found() if rule == "unbounded-wait"} == {"a.py", "c.py"}
