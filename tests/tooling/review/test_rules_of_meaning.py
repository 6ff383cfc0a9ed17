"""Rules about what values mean: their tokens, groups, ranks, versions and seeds; and names within a class."""

from __future__ import annotations

import pytest

from tooling.review.rules.catalogue import RULES

DIST = "import torch.distributed as dist\n\n"
DATA = "from dataclasses import dataclass, field\n@dataclass\nclass RunConfig:\n"
CHOICES = "field(default='a', metadata={'choices': ['a', 'b']})"
APP = "".join(f"@app.post('/{name}')\ndef {name}(r):\n    require_admin_key(r)\n\n\n" for name in ("a", "b", "c"))

FLOW = "class W:\n    async def arun_episode(self, engine, data):\n"
STEP = "def step(micro_batches, total, loss_of):\n    for mb in micro_batches:\n"
ENTROPY = "def f(F, logits, labels):\n    return F.cross_entropy"

CASES: dict[str, tuple[list[str], list[str]]] = {
    "shifted-alike": (
        [
            f"{ENTROPY}(logits[:, :-1].flatten(0, 1), labels[:, :-1].flatten())\n",
            "def f(F, logits, labels):\n    a = logits[..., 1:, :].contiguous()\n    b = labels[..., 1:].contiguous()\n"
            "    return F.cross_entropy(a.view(-1, 9), b.view(-1))\n",
            "def f(gather_logprobs, out, batch):\n"
            "    return gather_logprobs(out.logits[:, :-1], batch['input_ids'][:, :-1])\n",
        ],
        [
            f"{ENTROPY}(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())\n",
            f"{ENTROPY}(logits[:, 0], labels[:, 0])\n",
            "def f(F, logits, other_logits):\n    return F.cross_entropy(logits[:, :-1], other_logits[:, :-1])\n",
        ],
    ),
    "minimum-of-versions": (
        [
            "def head(trajectory):\n    return min(trajectory.versions)\n",
            "def head(batch):\n    return batch['versions'].min()\n",
            "import torch\ndef head(versions):\n    return torch.amin(versions)\n",
        ],
        [
            "def head(versions):\n    return min(v for v in versions if v >= 0)\n",
            "def head(versions, loss_mask):\n    return versions[loss_mask].min()\n",
            "def newest(versions):\n    return max(versions)\n",
        ],
    ),
    "state-on-workflow": (
        [
            f"{FLOW}        self.history = []\n        return await engine.agenerate(self.history)\n",
            f"{FLOW}        self.seen.append(data)\n        return await engine.agenerate(data)\n",
            f"{FLOW}        return await self.turn(engine, data)\n\n"
            "    async def turn(self, engine, data):\n        self.data = data\n"
            "        return await engine.ask(self.data)\n",
        ],
        [
            f"{FLOW}        history = []\n        return await engine.agenerate(history)\n",
            f"{FLOW}        self.done += 1\n        return await engine.agenerate(data)\n",
            f"{FLOW}        async with self.lock:\n            self.cache = data\n        return data\n",
            "class W:\n    def __init__(self):\n        self.history = []\n",
            # made once, of what the workflow has; kept until it is there
            f"{FLOW}        if isinstance(self.score, str):\n            self.score = find(self.score)\n"
            "            self.scored = Scored(self.score)\n        return await self.scored(data)\n",
            f"{FLOW}        if self.rows is None:\n            self.rows = await read(data)\n"
            "        return self.rows\n",
        ],
    ),
    "denominator-of-part": (
        [
            f"{STEP}        loss = loss_of(mb).sum() / mb['loss_mask'].sum()\n        loss.backward()\n",
            f"{STEP}        mask = mb.loss_mask\n        loss = loss_of(mb).sum() / mask.sum().clamp(min=1)\n"
            "        loss.backward()\n",
            "def step(mbs, loss_of):\n    for part in mbs:\n"
            "        (loss_of(part).sum() / part.loss_mask.count_nonzero()).backward()\n",
        ],
        [
            f"{STEP}        loss = loss_of(mb).sum() / total\n        loss.backward()\n",
            f"{STEP}        print(loss_of(mb).sum() / mb['loss_mask'].sum())\n",
            "def step(batches, loss_of):\n    for batch in batches:\n"
            "        loss = loss_of(batch).sum() / batch.loss_mask.sum()\n        loss.backward()\n",
        ],
    ),
    "failure-as-score": (
        [
            "def f(score):\n    try:\n        reward = score()\n    except TimeoutError:\n        reward = 0.0\n",
            "def f(s, run):\n    try:\n        s.score = run()\n    except ConnectionError:\n        s.score = -1\n",
            "async def f(score):\n    try:\n        reward = await score()\n    except asyncio.TimeoutError:\n"
            "        print('late')\n        reward = 0\n",
        ],
        [
            "def f(score):\n    try:\n        reward = score()\n    except TimeoutError:\n        raise\n",
            "def f(parse):\n    try:\n        reward = parse()\n    except ValueError:\n        reward = 0.0\n",
            "def f(g):\n    try:\n        count = g()\n    except TimeoutError:\n        count = 0\n",
        ],
    ),
    "default-group-rank": (
        [
            f"{DIST}def mean(x, group):\n    dist.all_reduce(x, group=group)\n    return x / dist.get_world_size()\n",
            f"{DIST}def mine(parts, group):\n    rank = dist.get_rank()\n    return parts[rank]\n",
        ],
        [
            f"{DIST}def mean(x, group):\n    return x / dist.get_world_size(group)\n",
            f"{DIST}def send(x, group):\n    dist.broadcast(x, src=dist.get_rank(), group=group)\n",
            f"{DIST}def both(group):\n    return dist.get_world_size(group) * 2 == dist.get_world_size()\n",
            f"{DIST}def mean(x):\n    return x / dist.get_world_size()\n",
            f"{DIST}def size(group=None):\n    if group is None:\n        return dist.get_world_size()\n",
        ],
    ),
    "roll-across-rows": (
        [
            "import torch\ndef f(ids):\n    first = ids[:, 0]\n    return first, torch.roll(ids, shifts=-1)\n",
            "import torch\ndef f(batch):\n    return torch.roll(batch['input_ids'], shifts=-1)\n",
            "import torch\ndef f(labels):\n    return labels.roll(-1) + torch.zeros(1)\n",
        ],
        [
            "import torch\ndef f(input_ids, cu_seqlens):\n    return torch.roll(input_ids, shifts=-1), cu_seqlens\n",
            "import torch\ndef f(ids):\n    first = ids[:, 0]\n    return first, torch.roll(ids, shifts=-1, dims=-1)\n",
            "import torch\ndef f(ids):\n    return ids[0], torch.roll(ids, shifts=-1)\n",
            "import numpy as np\ndef f(torch, ids):\n    return ids[:, 0], np.roll(ids, 1)\n",
        ],
    ),
    "mask-not-shifted": (
        [
            "import torch\ndef loss(data, nll):\n    labels = torch.roll(data['input_ids'], shifts=-1, dims=-1)\n"
            "    mask = data['loss_mask'].bool()\n    return (nll(labels) * mask).sum()\n"
        ],
        [
            "import torch\ndef loss(data, nll):\n    labels = torch.roll(data['input_ids'], shifts=-1, dims=-1)\n"
            "    mask = torch.roll(data['loss_mask'], shifts=-1, dims=-1)\n    return (nll(labels) * mask).sum()\n",
            "import torch\ndef loss(data, nll):\n    labels = torch.roll(data['input_ids'], shifts=-1, dims=-1)\n"
            "    mask = data['loss_mask'][:, 1:]\n    return (nll(labels)[:, :-1] * mask).sum()\n",
            "def loss(data, nll):\n    mask = data['loss_mask']\n    return (nll(data['input_ids']) * mask).sum()\n",
        ],
    ),
    "shared-row-changed": (
        [
            "class W:\n    async def arun_episode(self, engine, data):\n        data['prompt'] = 'x'\n",
            "class W:\n    async def arun_episode(self, engine, data):\n        return data.pop('images')\n",
            "def compute_loss(batch):\n    return batch['logprobs'].clamp_(max=2)\n",
        ],
        [
            "class W:\n    async def arun_episode(self, engine, data):\n        data = dict(data)\n"
            "        data['p'] = 'x'\n",
            "def prepare(batch):\n    batch['x'] = 1\n",
            "def compute_loss(batch):\n    batch['x'] = batch['y'].clone()\n    return batch['x'].clamp_(max=2)\n",
        ],
    ),
    "trajectory-without-versions": (
        [
            "class MyWorkflow:\n    async def arun_episode(self, e, d):\n"
            "        return {'input_ids': 1, 'loss_mask': 2, 'logprobs': 3}\n"
        ],
        [
            "class MyWorkflow:\n    async def arun_episode(self, e, d):\n"
            "        return dict(input_ids=1, loss_mask=2, logprobs=3, versions=4)\n",
            "class MyWorkflow:\n    async def arun_episode(self, e, d):\n"
            "        out = {'input_ids': 1, 'loss_mask': 2, 'logprobs': 3}\n        out['versions'] = 4\n"
            "        return out\n",
            "async def f():\n    return {'input_ids': 1, 'loss_mask': 2, 'logprobs': 3}\n",
        ],
    ),
    "version-not-set": (
        [
            "class E:\n    def update_weights_from_disk(self, m):\n        self.load(m)\n"
            "        self.set_version(m.v)\n\n"
            "    def update_weights_from_nccl(self, m):\n        self.receive(m)\n        self.set_version(m.v)\n\n"
            "    def update_weights_from_tensor(self, m):\n        self.copy(m)\n        self.flush()\n"
        ],
        [
            "class E:\n    def update_weights_from_disk(self, m):\n        self.load(m)\n"
            "        self.set_version(m.v)\n\n"
            "    def update_weights_from_nccl(self, m):\n        self.receive(m)\n        self.set_version(m.v)\n\n"
            "    def update_weights(self, m):\n        self.check(m)\n        self.update_weights_from_disk(m)\n"
        ],
    ),
    "group-order-lost": (
        [
            "import torch\ndef f(x, group_size):\n    x = x[torch.randperm(len(x))]\n"
            "    return x.view(-1, group_size)\n",
            "import random\ndef f(rows):\n    random.shuffle(rows)\n    return rows[::2], rows[1::2]\n",
        ],
        [
            "import torch\ndef f(x, group_size):\n    x = x.view(-1, group_size)\n"
            "    return x[torch.randperm(len(x))]\n",
            "import random\ndef f(rows):\n    random.shuffle(rows)\n    return rows[:8]\n",
        ],
    ),
    "pair-halves-equal": (
        ["def f(x):\n    chosen = x[::2]\n    rejected = x[::2]\n    return chosen - rejected\n"],
        ["def f(x):\n    chosen = x[::2]\n    rejected = x[1::2]\n    return chosen - rejected\n"],
    ),
    "unstable-seed": (
        ["import random\ndef f(name):\n    random.seed(hash(name))\n", "def f(g, n):\n    g(seed=hash((n, 1)) % 7)\n"],
        [
            "import random, zlib\ndef f(name):\n    random.seed(zlib.crc32(name.encode()))\n",
            "import random\ndef f():\n    random.seed(hash(1))\n",
            "def f(name, parts):\n    return parts[hash(name)]\n",
        ],
    ),
    "undefined-name": (
        [
            "def f(x):\n    return torch.tensor(x)\n",
            "def f():\n    try:\n        g()\n    except Gone:\n        pass\n",
        ],
        [
            "from os.path import *\ndef f(x):\n    return join(x)\n",
            "def f():\n    try:\n        pass\n    except OSError as error:\n        print(error, __name__)\n",
            "def f(x):\n    match x:\n        case [a, *b]:\n            return a, b\n        case {'k': c, **d}:\n"
            "            return c, d\n",
            "def f[T](x: T) -> T:\n    y: T = x\n    return y\n",
            "try:\n    text = unicode\nexcept NameError:\n    text = str\n",
            "def f(x: 'Gone', y: Gone2):\n    return lambda z: (x, y, z, [w for w in z])\n",
        ],
    ),
    "unknown-self-attribute": (
        [
            "class A:\n    def __init__(self):\n        self.size = 1\n\n    def f(self):\n        return self.sise\n",
            "class Base:\n    kind = 1\n\n\nclass B(Base):\n    def f(self):\n        return self.kind + self.king\n",
        ],
        [
            "class Mixin:\n    def f(self):\n        return self.size\n\n\nclass C(Mixin):\n    size = 1\n",
            "import torch\nclass A(torch.nn.Module):\n    def f(self):\n        return self.training\n",
            "class A:\n    def __getattr__(self, name):\n        raise AttributeError(name)\n\n    def f(self):\n"
            "        return self.x\n",
            "class A:\n    def f(self):\n"
            "        return self.__dict__, self.__class__, self.x if hasattr(self, 'x') else 1\n",
            "class Piece:\n    def f(self: Any):\n        return self.size\n",
            "class A:\n    def f(self):\n        return self.late\n\n\ndef make():\n    a = A()\n    a.late = 1\n",
        ],
    ),
    "method-mismatch": (
        [
            "class A:\n    def load(self, path):\n        return path\n\n    def f(self):\n"
            "        self.load(1, strict=2)\n"
        ],
        [
            "class A:\n    def load(self, path, **more):\n        return path\n\n    def f(self):\n"
            "        self.load(1, s=2)\n",
            "class A:\n    def load(self, path):\n        raise NotImplementedError\n\n    def f(self):\n"
            "        self.load()\n",
            "class A:\n    @wrapped\n    def load(self, path):\n        return path\n\n    def f(self):\n"
            "        self.load()\n",
        ],
    ),
    "unchecked-choice": (
        [
            f"{DATA}    mode: str = {CHOICES}\n    kind: str = {CHOICES}\n    def __post_init__(self):\n"
            "        if self.mode not in ('a', 'b'):\n            raise ValueError('mode')\n"
        ],
        [
            f"{DATA}    mode: str = {CHOICES}\n    kind: str = {CHOICES}\n",
            f"{DATA}    mode: str = {CHOICES}\n    kind: str = {CHOICES}\n    def __post_init__(self):\n"
            "        for name in ('mode', 'kind'):\n            check(self, name)\n",
        ],
    ),
    "heavy-package-root": ([], []),
    "one-kind-of-device": (
        ["import torch\nfrom platforms import current_platform\ntorch.cuda.empty_cache()\n"],
        [
            "import torch\nfrom platforms import current_platform\ncurrent_platform.empty_cache()\n",
            "import torch\ntorch.cuda.empty_cache()\n",
            "import torch\nfrom platforms import current_platform\nif is_cuda():\n    torch.cuda.ipc()\n",
        ],
    ),
    "main-only-name": ([], []),
    "sampler-without-epoch": (
        ["def f(d, n):\n    s = DistributedSampler(d)\n    for epoch in range(n):\n        print(epoch, s)\n"],
        [
            "def f(d, n):\n    s = DistributedSampler(d, shuffle=False)\n    for epoch in range(n):\n"
            "        print(epoch, s)\n"
        ],
    ),
    "exit-raises-again": (
        ["class A:\n    def __exit__(self, kind, error, trace):\n        if error:\n            raise error\n"],
        [
            "class A:\n    def __exit__(self, kind, error, trace):\n        if error:\n"
            "            raise OSError from error\n"
        ],
    ),
    "dead-assignment": (
        ["def f(a, b):\n    weight = a / b\n    weight = a\n    return weight\n"],
        [
            "def f(a, b):\n    weight = a / b\n    weight = weight + a\n    return weight\n",
            "def f(rows):\n    row = next(rows)\n    row = next(rows)\n    return row\n",
            "def f(a):\n    weight = None\n    weight = a.b\n    return weight\n",
        ],
    ),
    "socket-left-open": (
        ["import socket\ndef f():\n    s = socket.socket()\n    s.bind(('', 0))\n    return s.getsockname()[1]\n"],
        [
            "import socket\ndef f():\n    with socket.socket() as s:\n        return s.getsockname()[1]\n",
            "import socket\ndef f():\n    s = socket.socket()\n    s.bind(('', 0))\n    return s\n",
            "import socket\ndef f():\n    s = socket.socket()\n    s.bind(('', 0))\n    s.close()\n",
        ],
    ),
    "route-without-key": (
        [f"{APP}@app.post('/stop')\ndef stop(r):\n    r.stop()\n"],
        [
            f"{APP}@app.get('/health')\ndef health(r):\n    return 1\n",
            "@app.post('/stop')\ndef stop(r):\n    r.stop()\n",
        ],
    ),
}


@pytest.fixture(scope="module")
def found(shared_world) -> dict[str, set[str]]:
    return shared_world.found_in_cases(CASES)


@pytest.mark.sample(9)
@pytest.mark.parametrize("rule", [name for name, (bad, _) in CASES.items() if bad])
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(found, rule):
    assert found[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}


def test_a_package_that_loads_on_demand_stays_light(world):
    lazy = "def __getattr__(name):\n    raise AttributeError(name)\n"
    world.commit({"areal/__init__.py": lazy, "areal/a.py": "import torch\n", "other/__init__.py": ""})
    world.commit({"areal/__init__.py": "import torch\n\n" + lazy, "other/__init__.py": "import torch\n"})
    assert world.found() == [("heavy-package-root", "areal/__init__.py", 1)]


def test_functions_that_others_import_use_no_names_of_the_main_program(world):
    program = "def other(config):\n    return config\n\n\ndef train():\n    return config.lr\n\n\n"
    program += "if __name__ == '__main__':\n    config = parse()\n    train()\n"
    program = "from options import parse\n\n\n" + program
    world.commit({"run.py": program, "script.py": program, "user.py": "from run import train\n\ntrain()\n"})
    assert world.found() == [("main-only-name", "run.py", 9)]


def test_a_choice_may_be_checked_where_it_is_used(world):
    config = CASES["unchecked-choice"][0][0]
    world.commit({"a.py": config, "b.py": "def f(c):\n    if c.kind not in ('a', 'b'):\n        raise ValueError(c)\n"})
    assert world.found() == []


def test_rules_of_this_page_are_rules_of_one_file():
    assert {name for name in CASES if RULES[name].in_file is None} == set()
