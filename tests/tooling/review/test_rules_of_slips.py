"""Rules about slips in conditions, results, options and texts: each finds its cases and nothing beside them."""

from __future__ import annotations

import pytest

PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"
KIND = "from enum import Enum\n\n\nclass Kind(Enum):\n    A = 1\n    B = 2\n    C = 3\n    D = 4\n\n\n"
TRY = "def f(log, read):\n    try:\n        rows = read()\n    except OSError:\n"
TRACKERS = "".join(
    f"class {name}(Tracker):\n    def log(self, values, step):\n        v = values\n        self.run.log(v, step)\n\n\n"
    for name in "ABC"
)
LOCAL = "def f(self, dist, local_rank):\n"

CASES: dict[str, tuple[list[str], list[str]]] = {
    "crossed-branches": (
        [
            "def f(self):\n    return 'pool_1' if self.is_reward else 'pool_reward_1'\n",
            "def f(c, env):\n    if c.url:\n        env['KEY'] = c.key\n    if c.key:\n        env['URL'] = c.url\n",
            "def f(task, a, b, c):\n    if task == 'a':\n        a()\n    if task == 'b':\n        b()\n"
            "    elif task == 'c':\n        c()\n    else:\n        raise ValueError(task)\n",
            "def f(a, b, c, d):\n    if a():\n        x, y = 1, 'a'\n    if b():\n        x, y = 2, 'b'\n"
            "    elif c():\n        x, y = 3, 'c'\n    elif d():\n        x, y = 4, 'd'\n    else:\n"
            "        x, y = 0, ''\n    return x, y\n",
        ],
        [
            "def f(self):\n    return 'pool_reward_1' if self.is_reward else 'pool_1'\n",
            "def f(c, env):\n    if c.url:\n        env['URL'] = c.url\n    if c.key:\n        env['KEY'] = c.key\n",
            "def f(has_torchao):\n    return 'uses torchao' if has_torchao else 'torchao is not here'\n",
            "def f(name):\n    return name if name else 'no name'\n",
            "def f(task, a, b, c):\n    if task == 'a':\n        task = a()\n    if task == 'b':\n        b()\n"
            "    elif task == 'c':\n        c()\n    else:\n        raise ValueError(task)\n",
            "def f(task, a, b, c):\n    if task == 'a':\n        a()\n    if task == 'b':\n        b()\n"
            "    elif task == 'c':\n        c()\n",
            "def f(task, b, c):\n    if task == 'a':\n        return 1\n    if task == 'b':\n        b()\n"
            "    elif task == 'c':\n        c()\n    else:\n        raise ValueError(task)\n",
        ],
    ),
    "probe-raises": (
        [
            "from importlib.metadata import version\n\n\ndef is_available(name):\n    return bool(version(name))\n",
            "import importlib\n\n\ndef has_x_installed():\n    importlib.import_module('x')\n    return True\n",
            "import importlib.metadata\n\n\ndef is_x_available():\n    found = importlib.metadata.version('x')\n"
            "    return found is not None\n",
        ],
        [
            "from importlib.metadata import version\n\n\ndef is_available(name):\n    try:\n"
            "        return bool(version(name))\n    except ImportError:\n        return False\n",
            "from importlib.util import find_spec\n\n\ndef is_available(name):\n    return bool(find_spec(name))\n",
            "from importlib.metadata import version\n\n\ndef version_available(name):\n    return version(name)\n",
        ],
    ),
    "always-true": (
        [
            "def ready():\n    return probe()\n\n\ndef f():\n    if not ready:\n        return 1\n    return 2\n",
            "def f(names):\n    files = filter(is_json, names)\n    if not files:\n        raise ValueError\n"
            "    return files\n",
            "from lib import is_torch_available\nif is_torch_available:\n    x = 1\n",
            "from contextlib import contextmanager\n@contextmanager\ndef quiet():\n    yield\n\n\ndef f():\n"
            "    if quiet():\n        step()\n",
            "def f(self, value):\n    if self.version.get_lock():\n        self.version.value = value\n",
            "from filelock import FileLock\ndef f(path):\n    if FileLock(path, timeout=60):\n        make(path)\n",
        ],
        [
            "def ready():\n    return probe()\n\n\ndef f(ready):\n    if not ready:\n        return 1\n    return 2\n",
            "def f(names):\n    files = list(filter(is_json, names))\n    if not files:\n"
            "        raise ValueError\n    return files\n",
            "from lib import is_torch_available\nif is_torch_available():\n    x = 1\n",
            "from contextlib import contextmanager\n@contextmanager\ndef quiet():\n    yield\n\n\ndef f():\n"
            "    with quiet():\n        step()\n",
            "def f(self, value):\n    if self.lock.acquire(timeout=5):\n        self.value = value\n",
            "from functools import cache\n@cache\ndef quiet():\n    return False\n\n\ndef f():\n"
            "    if quiet():\n        step()\n",
        ],
    ),
    "result-of-nothing": (
        [
            "def make(s):\n    s.client = 1\n\n\nc = make(2)\n",
            "class M:\n    def make(self):\n        self.client = 1\n\n    def f(self):\n"
            "        self.client = self.make()\n",
            "async def go(s):\n    s.done = 1\n\n\nasync def f(s):\n    x = await go(s)\n    return x\n",
        ],
        [
            "def make(s):\n    return s.client\n\n\nc = make(2)\n",
            "class A:\n    def make(self):\n        raise NotImplementedError\n\n    def f(self):\n"
            "        self.c = self.make()\n",
            "class A:\n    def make(self):\n        self.c = 1\n\n    def f(self):\n"
            "        return self.use(c=self.make)\n",
            "class A:\n    def make(self):\n        self.c = 1\n\n    def f(self):\n        self.d = self.make()\n\n\n"
            "class B(A):\n    def make(self):\n        return 2\n",
        ],
    ),
    "unpack-mismatch": (
        [
            "def load(p):\n    return 1, 2, p\n\n\na, b = load(3)\n",
            "class A:\n    def load(self, p):\n        return 1, p\n\n    def f(self):\n"
            "        a, b, c = self.load(1)\n        return a\n",
            "async def go(s):\n    if s:\n        return 1, s\n    return 2, s\n\n\nasync def f(s):\n"
            "    a, b, c = await go(s)\n",
        ],
        [
            "def load(p):\n    return 1, p\n\n\na, b = load(3)\n",
            "def load(p):\n    return p\n\n\na, b, c = load(3)\n",
            "def load(p):\n    return 1, *p\n\n\na, b, c = load(3)\n",
        ],
    ),
    "unbound-after-except": (
        [
            f"{TRY}        log('no')\n    return len(rows)\n",
            "def f(q, all_, Empty, log):\n    for _ in q:\n        try:\n            m = q.get()\n"
            "        except Empty:\n            log('x')\n"
            "        all_.append(m)\n",
            f"{TRY}        pass\n    n = rows + 1\n    return n\n",
        ],
        [
            f"{TRY}        return 0\n    return len(rows)\n",
            "def f(exp, mean):\n    try:\n        loss = mean()\n        p = exp(loss)\n    except OverflowError:\n"
            "        p = 0\n    return loss, p\n",
            f"{TRY}        rows = []\n    return len(rows)\n",
            "def f(log, read):\n    rows = []\n    try:\n        rows = read()\n    except OSError:\n"
            "        log(1)\n    return len(rows)\n",
            f"{TRY}        ok = False\n    else:\n        log(rows)\n    return log\n",
        ],
    ),
    "error-returned": (
        [
            "def f(self):\n    return NotImplementedError('write it')\n",
            "def f(self):\n    return NotImplementedError\n",
        ],
        ["def f(self):\n    raise NotImplementedError\n", "def f(self, o):\n    return NotImplemented\n"],
    ),
    "unknown-option": (
        [
            f"{PARSER}parser.add_argument('--learning-rate')\nargs = parser.parse_args()\nprint(args.lr)\n",
            f"{PARSER}parser.add_argument('--eval.dataset')\nassert parser, '`--eval_dataset` is needed'\n",
            f"{PARSER}parser.add_argument('path')\nargs = parser.parse_args()\n\n\ndef f():\n    return args.paths\n",
        ],
        [
            f"{PARSER}parser.add_argument('--learning-rate')\nargs = parser.parse_args()\nprint(args.learning_rate)\n",
            f"{PARSER}add_more(parser)\nargs = parser.parse_args()\nprint(args.lr)\n",
            f"{PARSER}parser.add_argument('--lr', dest='rate')\nargs = parser.parse_args()\nargs.n = 1\n"
            "print(args.rate, args.n)\n",
            f"{PARSER}parser.add_argument('--data')\nassert parser, 'pass --other to the server'\n",
        ],
    ),
    "option-without-effect": (
        [
            f"{PARSER}parser.add_argument('--unsafe', action='store_false', default=False)\n",
            f"{PARSER}parser.add_argument('--flash', action='store_true', default=True)\n",
        ],
        [
            f"{PARSER}parser.add_argument('--unsafe', action='store_true', default=False)\n",
            f"{PARSER}parser.add_argument('--flash', action='store_false', dest='eager')\n",
        ],
    ),
    "parameter-ignored": (
        [
            f"{TRACKERS}class D(Tracker):\n    def log(self, values, step):\n        v = values\n"
            "        self.run.log(v)\n",
            f"{TRACKERS}class E(Tracker):\n    def log(self, values, step):\n        if values:\n"
            "            self.run.log(values)\n        self.run.flush()\n",
        ],
        [
            f"{TRACKERS}class D(Tracker):\n    def log(self, values, step):\n        v = values, step\n"
            "        self.run.log(v)\n",
            f"{TRACKERS}class D(Tracker):\n    def log(self, values, step):\n        pass\n",
            f"{TRACKERS}class D(Other):\n    def log(self, values, step):\n        v = values\n"
            "        self.run.log(v)\n",
        ],
    ),
    "version-as-text": (
        [
            "import vllm\nassert vllm.__version__ >= '0.8.2'\n",
            "import numpy\nNEW = '2.10' <= numpy.__version__\n",
            "import trl\nif trl.__version__ < '1.0':\n    x = 1\n",
        ],
        [
            "import vllm\nfrom packaging.version import parse\nassert parse(vllm.__version__) >= parse('0.8.2')\n",
            "import torch\nNEW = torch.__version__ == '2.10'\n",
            "import trl\nOLD = trl.__version__.startswith('0.')\n",
        ],
    ),
    "zero-as-missing": (
        [
            "def f(info):\n    return info.get('score') or info.get('reward')\n",
            "def f(x, temperature=None):\n    return x / (temperature or 1.0)\n",
            "def f(config, seed_all):\n    seed_all(config.seed or 42)\n",
        ],
        [
            "def f(info):\n    return info.get('names') or info.get('labels')\n",
            "def f(x, reward=None):\n    return x + (reward or 0.0)\n",
            "def f(a, seed):\n    if seed or a:\n        return 1\n    return 2\n",
        ],
    ),
    "global-rank-as-device": (
        [
            f"{LOCAL}    dist.barrier(device_ids=[self.process_index])\n",
            f"{LOCAL}    dist.barrier(device_ids=[dist.get_rank()])\n",
            "import torch\n# no local rank\ndef f(dist):\n    torch.cuda.set_device(dist.get_rank())\n",
        ],
        [
            f"{LOCAL}    dist.barrier(device_ids=[self.local_process_index])\n",
            f"{LOCAL}    dist.barrier(device_ids=[dist.get_rank() % 8])\n",
            "import torch\ndef f(rank, local):\n    torch.cuda.set_device(rank)\n",
        ],
    ),
    "strings-run-together": (
        [
            "def f():\n    raise ValueError(\n        'this does not work with'\n        'the fused kernel of'\n"
            "    )\n",
            'def f(x):\n    raise ValueError(\n        f"the value {x} is wrong."\n'
            '        "Choose another one please."\n    )\n',
        ],
        [
            "def f():\n    raise ValueError(\n        'this does not work with '\n"
            "        'the fused kernel of'\n    )\n",
            "A = [\n    'one two three',\n    'four five six',\n]\n",
            'def f():\n    print(\n        "the first line of it\\n"\n        "the second line of it"\n    )\n',
            "U = (\n    'https://example.com/a/'\n    'b/c'\n)\n",
        ],
    ),
    "unknown-member": (
        [
            f"{KIND}def f(x):\n    return x == Kind.BITS\n",
            "class Meta:\n    @classmethod\n    def from_x(cls):\n        return cls()\n\n\nm = Meta.from_y()\n",
        ],
        [
            f"{KIND}def f(x):\n    return x == Kind.A or Kind.A.value or Kind.__members__\n",
            "from lib import Base\n\n\nclass Meta(Base):\n    x = 1\n\n\nm = Meta.from_y()\n",
            "import ray\n\n\n@ray.remote\nclass Meta:\n    x = 1\n\n\nm = Meta.options(num_cpus=1)\n",
            "class Meta:\n    x = 1\n\n\nMeta.y = 2\nm = Meta.y\n",
        ],
    ),
}


@pytest.fixture(scope="module")
def found(shared_world) -> dict[str, set[str]]:
    return shared_world.found_in_cases(CASES)


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(found, rule):
    assert found[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}


def test_an_attribute_that_was_moved_leaves_no_use_behind(world):
    old = "class T:\n    def __init__(self):\n        self.llm = 1\n        self.kept = 2\n\n"
    use = "    def f(self):\n        return self.llm, self.kept\n"
    moved = "class T:\n    def __init__(self):\n        self.generation = 1\n        self.kept = 2\n\n"
    below = "class Sub(T):\n    def __init__(self):\n        self.llm = 3\n"
    asked = "    def f(self):\n        return getattr(self, 'llm', None), self.llm\n"
    before = {"a.py": old + use, "b.py": old + use, "c.py": old + use, "d.py": f"from lib import B\n{old}{use}"}
    world.commit(before | {"e.py": old.replace("T", "U") + use})
    world.commit(
        {
            "a.py": moved.replace("T", "V") + use,  # another class
            "b.py": f"{old}{use}\n\n",
            "c.py": moved.replace("class T", "class W") + use,
            "d.py": f"from lib import B\n{moved}{use}",
            "e.py": moved.replace("T", "U") + use,
            "f.py": below,
            "g.py": f"class X:\n{asked}",
        }
    )
    # T of d.py has a subclass that sets it; U has none.
    assert [(rule, path) for rule, path, _ in world.found() if rule == "attribute-no-longer-set"] == [
        ("attribute-no-longer-set", "e.py")
    ]
