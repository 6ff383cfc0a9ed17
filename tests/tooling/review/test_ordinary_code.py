"""Ordinary code that is right and was once reported: rules are silent on all of it."""

from __future__ import annotations

import pytest

PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"
KIND = "from enum import Enum\n\n\nclass Kind(Enum):\n    A = 1\n    B = 2\n    C = 3\n    D = 4\n\n\n"
TRY = "def f(log, read):\n    ok = True\n    try:\n        rows = read()\n    except OSError as error:\n"
INIT = "class A:\n    def __init__(self, kw):\n"
MODULE = "from torch.nn import Module\n\n\nclass A(Module):\n    def __init__(self, kw):\n        super().__init__()\n"
SPAWN = (
    "def f(s):\n    started = False\n    try:\n        s.connect()\n        proc = s.spawn()\n        started = True\n"
)
SPAWN += "        s.go()\n"
ABOVE = "class Base:\n    async def get(self, k):\n        await k\n\n\nclass A(Base):\n"
LOSSES = "def f(rows):\n    losses = []\n    for row in rows:\n        loss = g(row)\n        losses.append(loss)\n"
PIECES = "def f(rows, pages, use):\n    rows = (each for each in rows)\n    for page in pages:\n"
HELD = "import httpx\n\n\nclass C:\n    def __init__(self):\n        self.client = httpx.AsyncClient()\n\n"
THREAD = "import threading\n\n\nclass A:\n    def start(self):\n        self.t = threading.Thread(target=self.poll)\n\n"
EPISODE = "class A:\n    async def run_agent(self, data, client):\n"
CLOSE = "class A:\n    async def close(self):\n"

ORDINARY: dict[str, list[str]] = {
    "version-as-text": [
        "import torch\nNEW = torch.__version__ >= '2.10'\n",
        "from torch import __version__\nNEW = '2.10' <= __version__\n",
    ],
    "unbounded-wait": [
        f"import asyncio\n\n\n{CLOSE}        await asyncio.wait_for(self.process.wait(), 5)\n",
        f"import asyncio\n\n\n{CLOSE}        async with asyncio.timeout(5):\n            await self.process.wait()\n",
        "class A:\n    def close(self):\n        self.process.kill()\n        self.process.wait()\n",
        "class A:\n    def close(self):\n        self.processes[0].kill()\n        self.processes[0].join()\n",
        "class A:\n    def close(self):\n        kill_all_processes(self.processes)\n"
        "        for process in self.processes:\n            process.join()\n",
        "class A:\n    def close(self, kill_tree):\n        kill_tree(self.process.pid)\n        self.process.wait()\n",
    ],
    "unknown-option": [
        f"{PARSER}parser.add_argument('--gradient-checkpointing', action=argparse.BooleanOptionalAction)\n"
        "assert parser, 'pass --no-gradient-checkpointing for speed'\n",
        f"{PARSER}parser.add_argument('--rate')\nargs = parser.parse_args(namespace=Options())\nprint(args.words)\n",
    ],
    "unbound-after-except": [
        f"{TRY}        ok = False\n    return rows if ok else None\n",
        f"{TRY}        give_up(error)\n    return rows\n",
        f"def reject_all(error):\n    log(error)\n    raise ValueError from error\n\n\n"
        f"{TRY}        reject_all(error)\n    return rows\n",
        f"def leave(error):\n    raise ValueError from error\n\n\n{TRY}        leave(error)\n    return rows\n",
        f"{TRY}        log(error)\n    return sorted(ok, key=lambda rows: rows)\n",
        f"{TRY}        ok = False\n    return ok and rows\n",
        f"{TRY}        from lib import rows\n    return rows\n",
    ],
    "result-of-nothing": [
        "class A:\n    def make(self):\n        self.c = 1\n\n    def f(self):\n        self.d = self.make()\n\n\n"
        "class B(A):\n    pass\n\n\nclass C(B):\n    def make(self):\n        return 2\n",
    ],
    "error-returned": ["class A:\n    def error_type(self):\n        return NotImplementedError\n"],
    "argument-order": [
        "def scale(values, factor, temperature=1.0):\n    return values * factor / temperature\n\n\n"
        "def f(values, temperature):\n    return scale(values, temperature)\n",
    ],
    "unknown-member": [
        f"{KIND}def f(x):\n    return Kind._value2member_map_, Kind._member_map_, Kind._member_names_, Kind.mro()\n",
        "class Meta:\n    x = 1\n\n\nm = Meta.mro()\n",
    ],
    "shell-from-values": [
        "import shlex, subprocess\ndef f(p):\n    c = shlex.join(['rm', p])\n    subprocess.run(c, shell=True)\n",
        "import subprocess\ndef f(p, log):\n    c = f'rm {p}'\n    log(c)\n    c = 'ls'\n"
        "    subprocess.run(c, shell=True)\n",
        "import os, shlex\ndef f(p):\n    os.system('rm ' + ' '.join(map(shlex.quote, p)))\n",
    ],
    "guard-contradicts": [
        "def f(stack):\n    if stack:\n        raise ValueError('stack not empty after STOP: %r' % stack)\n",
        "def f(stack):\n    if stack:\n        raise ValueError('the stack must be empty')\n",
        "def f(m, find, t, use):\n    if m is None and (m := find(t)):\n        use(m.x)\n",
        "class A:\n    def f(self):\n        if self.c is None and self.connect():\n            self.c.send()\n",
        "def f(value, must_exist):\n    if must_exist:\n"
        "        raise NameError(f'{value} is missing and must exist')\n",
        "def f(same, buffer):\n    if same:\n"
        "        raise TypeError('same must be False when a buffer is passed, or extend must be set to True')\n",
        "def f(data, key=None):\n    if key is not None:\n        raise KeyError(f'key {key!r} not found in data')\n",
        "def f(probs, logits):\n    if logits is not None:\n"
        "        raise ValueError('Either probs or logits must be specified, but not both.')\n",
    ],
    "zero-as-missing": [
        "def f(row):\n    return row.scores or list()\n",
        "class A:\n    def f(self):\n        return self.rewards or self.make(), self.version or get_version()\n",
    ],
    "set-in-a-branch": [
        "def f(m):\n    if not isinstance(masks := m, dict):\n        masks = make(m)\n    return masks['a']\n",
    ],
    "sync-override": [
        f"{ABOVE}    def get(self, k):\n        return self.fast(k) if k else super().get(k)\n",
        f"{ABOVE}    def get(self, k):\n        return self.tasks[k]\n",
    ],
    "always-none": [
        "def f(rows):\n    best = None\n    return sorted(rows, key=lambda best: best.name)\n",
        "def f(rows):\n    rest = None\n    match rows:\n        case {'a': 1, **rest}:\n            pass\n"
        "    return rest['b']\n",
    ],
    "submodule-not-imported": [
        "import urllib\nimport urllib.request\n\nX = urllib.parse.quote('a'), urllib.error.URLError\n",
        "import logging\nimport logging.config\n\nX = logging.handlers.QueueHandler\n",
        "import http\nimport http.server\n\nX = http.client.OK\n",
    ],
    "number-as-tensor": [
        "import numpy as np\ndef f(p):\n    return np.load(p, allow_pickle=True).item().float()\n",
    ],
    "unsafe-deserialisation": [
        "import pickle\nimport torch.distributed as dist\ndef f(x):\n    dist.broadcast(x, src=0)\n"
        "    return pickle.loads(x.cpu().numpy().tobytes())\n",
        "import pickle\nimport torch.distributed as dist\ndef f(x, xs):\n    dist.all_gather(xs, x)\n"
        "    data = xs[0].numpy().tobytes()\n    return pickle.loads(data)\n",
        "import cloudpickle\n\n\nclass A:\n    def __setstate__(self, data):\n"
        "        self.x = cloudpickle.loads(data)\n",
    ],
    "iterator-used-up": [
        "import multiprocessing\n\n\ndef f(jobs, check):\n    pool = multiprocessing.Pool()\n"
        "    found = pool.map(str, jobs)\n    while True:\n        for each in found:\n            check(each)\n",
        "def f(pool, jobs, check):\n    found = pool.map(str, jobs)\n    while True:\n        check(list(found))\n",
        "from jax.lax import map\n\n\ndef f(jobs, check):\n    found = map(str, jobs)\n    while True:\n"
        "        for each in found:\n            check(each)\n",
        f"{PIECES}        for row in rows:\n            if row > page:\n                break\n            use(row)\n",
        f"{PIECES}        for row in rows:\n            use(row)\n            if row > page:\n                return\n",
        f"{PIECES}        if not any(rows):\n            use(page)\n",
        f"{PIECES}        use(next((each for each in rows if each > page), None))\n",
        f"{PIECES}        use(next(enumerate(rows)))\n",
    ],
    "relative-in-script": ["from .flow import main\n\nif __name__ == '__main__':\n    main()\n"],
    "super-without-self": [
        "class A(B):\n    @staticmethod\n    def __new__(cls, x):\n        return super().__new__(cls, x)\n",
        "class A(B):\n    @staticmethod\n    def show(self):\n        return super().show()\n",
    ],
    "returns-differ": [
        "def f(a) -> tuple[int, int] | bool:\n    if a:\n        return False\n    return a, 1\n\n\nx, y = f(1)\n",
        "from typing import Literal\n\n\ndef f(a) -> tuple[int, int] | Literal[False]:\n    if a:\n"
        "        return False\n    return a, 1\n",
        "def f(a):\n    yield a\n    if a:\n        return False\n    return a, 1\n\n\nx, y = f(1)\n",
        "def f(a):\n    if a:\n        return False\n    return 1, *a\n\n\nx, y = f(1)\n",
        "def key(a):\n    if a.last:\n        return True\n    return a.x, a.y\n\n\nprint(sorted([], key=key))\n",
    ],
    "lazy-at-end": [
        "import re\n\n\ndef f(t):\n    if re.search(r'error: .+?', t):\n        return 1\n    return 2\n",
        "import re\n\n\ndef f(t):\n    if re.match(r'/api/(.*?)', t):\n        return 1\n    return 2\n",
        "import re\n\n\ndef f(t):\n    return re.split(r'a(.*?)', t), re.sub(r'a(.*?)', '', t), re.escape(r'(.*?)')\n",
        "import re\nNAMES = re.compile(r'(.+?)')\n",
        "import re\nNAMES = [re.compile(r'a(.+?)')]\n",
        "from lazy_at_end_3 import NAMES\n\nprint(NAMES.fullmatch('x'))\n",
    ],
    "update-without-pause": [
        "import torch.distributed as dist\n\n\ndef update_weights_from_distributed(model, w, group):\n"
        "    dist.broadcast(w, src=0, group=group)\n    model.load_weights([w])\n",
        "import torch.distributed as dist\n\n\nclass W:\n    def update_weights_from_disk(self, m):\n"
        "        self.engine.update_weights_from_disk(m)\n        dist.barrier(group=self.g)\n",
        "import torch.distributed as dist\n\n\nclass W:\n    def update_weights_from_disk(self, m):\n"
        "        with self.rollout.stopped:\n            self.rollout.update_weights_from_disk(m)\n"
        "        dist.barrier(group=self.g)\n",
        "import torch.distributed as dist\n\n\nclass W:\n    def update_weights_from_disk(self, m):\n"
        "        self.rollout.sleep()\n        self.rollout.update_weights_from_disk(m)\n"
        "        dist.barrier(group=self.g)\n",
    ],
    "shared-row-changed": [
        f"{EPISODE}        self.rows = data['messages']\n        rows = [1]\n        rows.append(client)\n",
        f"{EPISODE}        data = dict(data)\n        rows = list(data['messages'])\n        rows.append(1)\n",
        f"{EPISODE}        data = {{**data}}\n        data['m'] = list(data['m'])\n        rows = data['m']\n"
        "        rows.append(1)\n",
    ],
    "session-left-open": [
        HELD.replace("C:", "C(Closing):"),
        f"{HELD}    async def end(self):\n        if s := self.client:\n            await s.aclose()\n",
        f"{HELD}\nasync def run(c):\n    await c.client.aclose()\n",
        f"{HELD}    def get(self, make):\n        return self.client or make()\n",
    ],
    "thread-not-daemon": [
        f"{THREAD}    def poll(self):\n        while not self.ends:\n            self.step()\n\n"
        "    def __exit__(self, *error):\n        self.ends = True\n        self.t.join()\n",
        f"{THREAD[:-1]}        self.t.start()\n        self.t.join()\n\n"
        "    def poll(self):\n        while not self.ends:\n            self.step()\n",
    ],
    "type-only-name": [
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from lib import A\n\n\ndef f(x):\n"
        "    if TYPE_CHECKING:\n"
        "        assert isinstance(x, A)\n    return x\n",
    ],
    "optional-in-annotation": [
        "from lib import explain_error\n\ntry:\n    from vllm import Params\nexcept ImportError as error:\n"
        "    explain_error(error)\n\n\n"
        "def make(n: int) -> Params:\n    return Params(n)\n",
    ],
    "unknown-self-attribute": [
        "from lib import Loss\n\n\nclass Rows:\n    def f(self):\n        class Own(Loss):\n            def g(self):\n"
        "                return self.total\n\n        return Own()\n",
        "class Worker:\n    def f(self):\n        return self.runner\n\n\n"
        "SETTINGS = {'extension': 'unknown_self_attribute_1.Worker'}\n",
    ],
    "class-attribute-filled": [
        "from threading import Lock\n\n\nclass Client:\n    _lock = Lock()\n    _models = {}\n\n"
        "    def get(self, name, load):\n"
        "        with self._lock:\n            self._models[name] = load(name)\n",
    ],
    "roll-across-rows": [
        "import torch\n\n\ndef f(labels):\n    targets = torch.roll(labels, shifts=-1)\n"
        "    targets[:, -1] = -100\n    return targets\n",
    ],
    "mutable-default": [
        "class Config:\n    def __init__(self, layers=[0, 20]):\n        self.layers = layers\n",
    ],
    "dropped-result": [
        "import torch\n\n\ndef f(rows):\n    try:\n        rows.contiguous()\n    except RuntimeError:\n"
        "        return False\n    return True\n",
    ],
    "option-without-effect": [
        f"{PARSER}parser.add_argument('--small-init', action='store_true', default=True)\n"
        "parser.add_argument('--no-small-init', dest='small_init', action='store_false')\n",
    ],
    "same-twice": [
        "def f(done):\n    return done ^ done\n",
    ],
    "maybe-missing": [
        "from tensordict import TensorDict\n\n\ndef f(rows: TensorDict):\n"
        "    return rows.get('a')[1:], rows.get('lives') > 1\n",
    ],
    "swallowed-error": [
        "def f(env):\n    try:\n        env.close()\n    except Exception:\n        pass\n",
        "def f(jobs):\n    try:\n        jobs.result()\n    except Exception:\n"
        "        pass  # hanging is not acceptable, failing is\n",
    ],
    "unknown-attribute": [
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Spec:\n    size: int\n\n\n@dataclass\n"
        "class Composite(Spec):\n"
        "    def keys(self):\n        return []\n\n\ndef f(spec: Spec):\n    return spec.keys()\n",
        "from dataclasses import dataclass\n\n\n@dataclass\nclass Spec:\n    size: int\n\n\nclass A:\n"
        "    @property\n    def spec(self):\n"
        "        return 1\n\n    @spec.setter\n    def spec(self, spec: Spec):\n        self.x = spec\n",
    ],
    "crossed-branches": ["def f(use_gpu):\n    return 'cpu-ram' if use_gpu else 'cpu-gpu-ram'\n"],
}


@pytest.fixture(scope="module")
def said(shared_world) -> set[tuple[str, str]]:
    """What is found in all of it at once: rule and path."""
    shared_world.commit(
        {f"{rule.replace('-', '_')}_{at}.py": text for rule, texts in ORDINARY.items() for at, text in enumerate(texts)}
    )
    return {(rule, path) for rule, path, _ in shared_world.found()}


@pytest.mark.sample(4)
@pytest.mark.parametrize("rule", ORDINARY)
def test_a_rule_is_silent_on_ordinary_code(said, rule):
    assert [path for name, path in said if name == rule and path.startswith(rule.replace("-", "_"))] == []


def test_what_is_right_in_tests_is_left_alone(world):
    shown = "import pytest\nimport torch\n\n\n@pytest.mark.parametrize('kind', ['a'])\n"
    shown += "def test_a(kind, spec, masked_logits):\n    if kind == 'a':\n        t = spec(kind)\n"
    shown += "    spec.expand(-1, 4)\n    assert t == masked_logits[0, 1:]\n"
    world.commit({"tests/test_a.py": shown, "setup.py": "with open('a/_version.py') as f:\n    exec(f.read())\n"})
    assert world.found() == []


def test_a_module_that_setup_builds_is_there(world):
    extension = (
        "from torch.utils.cpp_extension import CppExtension\n\nEXTENSION = CppExtension('pk._fast', ['csrc/a.cpp'])\n"
    )
    world.commit({"pk/__init__.py": "", "setup.py": extension})
    world.commit({"use.py": "import pk._fast\nimport pk._slow\n"})
    assert [(rule, line) for rule, _, line in world.found()] == [("unresolved-import", 2)]


def test_attributes_of_a_class_body_in_any_form_and_of_foreign_bases_stay_set(world):
    use = "\n    def f(self):\n        return self.config, self.size, self.read, self.q\n"
    body = "    size = 1\n    q = 2\n    config = 3\n\n    def read(self): ...\n"
    forms = (
        "    size, config = 1, 2\n    if size:\n        def read(self): ...\n    else:\n        def read(self): ...\n"
        "    from lib import q\n"
    )
    foreign = "from lib import PreTrainedModel\n\n\nclass B(PreTrainedModel):\n    size = q = read = 1\n\n"
    init = "    def __init__(self, config):\n        super().__init__(config)\n"
    world.commit({"a.py": f"class A:\n{body}{use}", "b.py": f"{foreign}{init}        self.config = config\n{use}"})
    world.commit({"a.py": f"class A:\n{forms}{use}", "b.py": f"{foreign}{init}{use}"})
    assert [path for rule, path, _ in world.found() if rule == "attribute-no-longer-set"] == []


def test_a_class_that_is_its_own_base_does_not_end_a_rule(world):
    own = "    def __init__(self):\n        self.step_count = 1\n\n    def f(self):\n        return self.stepcount\n"
    text = f"from b import *\n\n\nclass A(A):\n    x = 2\n\n\nclass C(A):\n{own}\n\nclass D:\n{own}"
    world.commit({"a.py": text, "b.py": "class A:\n    x = 1\n"})
    assert ("a.py", 21) in [(path, line) for _, path, line in world.found()]


def test_a_text_of_the_form_of_a_target_is_not_one_outside_of_registries(world):
    world.commit({"config/__init__.py": "", "pk/__init__.py": "", "pk/engine.py": "x = 1\n"})
    texts = "ROLE = 'config.yaml:actor'\nTAG = 'pk.run:start'\nOBJECT = 'pk.engine:gone'\n"
    world.commit({"use.py": texts, "pk/registry.py": "A = 'pk.run:start'\n"})
    assert world.found() == [("registry-target", "pk/registry.py", 1), ("registry-target", "use.py", 3)]
