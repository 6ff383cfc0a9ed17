"""Every rule that reads one file has three cases that are wrong and three that only look so: the rest of the tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tooling.review import linter
from tooling.review.rules.catalogue import RULES

DIST = "import torch.distributed as dist\n\n\n"
REWARD = "def score_reward(prompt, completions, prompt_ids, completion_ids, answer=None, **data):\n"
EPISODE = "class MyWorkflow:\n    async def arun_episode(self, e, d):\n"
CONFIG = "from dataclasses import dataclass, field\nimport omegaconf\nfrom typing import Literal\n\n\n"
CONFIG += "@dataclass\nclass DataArgs:\n"
CHOSEN = "field(default='a', metadata={'choices': ['a', 'b']})"
ARGS = "from dataclasses import dataclass\n\n\n@dataclass\nclass Args:\n    size: int = 1\n\n\n"
SEND = "def _update_weights_from_distributed(self, meta):\n"
TABLE = "@app.post('/a')\ndef a(r):\n    check_key(r)\n\n\n@app.post('/b')\ndef b(r):\n    check_key(r)\n\n\n"
TABLE += "@app.post('/c')\ndef c(r):\n    check_key(r)\n\n\n"
MORE: dict[str, tuple[list[str], list[str]]] = {
    "group-not-forwarded": (
        [
            f"{DIST}def total_a(x, *, process_group):\n    return dist.all_gather([], x)\n",
            f"{DIST}def gather_b(x, group=None):\n    dist.all_reduce(x, group=group)\n    return x\n\n\n"
            "def f(rows, group=None):\n    return [gather_b(each) for each in rows]\n",
        ],
        [],
    ),
    "group-unnamed": (
        [
            f"{DIST}class E:\n    def f(self, a):\n        dist.all_reduce(a, group=self.x)\n"
            "        dist.all_reduce(a, group=self.y)\n        dist.broadcast(a, 0, group=self.z)\n\n"
            "    def g(self, a):\n        dist.all_reduce(a)\n\n\ndef h(a):\n    dist.all_reduce(a)\n"
            "    dist.all_reduce(a)\n",
            f"{DIST}class E:\n    def a(self):\n        dist.barrier(self.g)\n\n    def b(self):\n"
            "        dist.barrier()\n",
            f"{DIST}class E:\n    def a(self, d):\n        dist.barrier(group=self.g)\n"
            "        dist.barrier(device_ids=[d])\n",
        ],
        [
            f"{DIST}class E:\n    def a(self):\n        dist.barrier(group=self.g)\n"
            "        dist.barrier(group=self.h)\n",
            f"{DIST}class E:\n    def save(self):\n        dist.barrier(group=self.g)\n\n\ndef f():\n"
            "    dist.barrier()\n",
        ],
    ),
    "half-renamed": (
        [],
        [
            "def f(map_score, size):\n    pure_map = map_score['map']\n    pure_map50 = map_score['map50']\n"
            "    return pure_map, pure_map50, size\n"
        ],
    ),
    "sibling-without": (
        [],
        [
            "class Arm:\n    tag: str\n\n\nclass A(Arm):\n    tag = 'a'\n\n\nclass B(Arm):\n    tag = 'b'\n\n\n"
            "class Mid(Arm):\n    x = 1\n\n\nclass C(Mid):\n    tag = 'c'\n"
        ],
    ),
    "rank-local-assert": (
        [
            f"{DIST}def f(x, g):\n    assert x.numel(), 'nothing here'\n    dist.all_gather([], x, group=g)\n",
            f"{DIST}class A:\n    def f(self, loss):\n        assert not loss.isnan()\n        dist.all_reduce(loss)\n",
        ],
        [
            f"{DIST}def f(x):\n    dist.all_reduce(x)\n    assert x > 0\n",
            f"{DIST}def f(x):\n    assert x > 0\n    return x\n",
        ],
    ),
    "module-level-group": (
        [
            f"{DIST}dist.init_process_group('gloo')\n",
            f"{DIST}class A:\n    group = dist.new_group([0])\n",
        ],
        [
            f"{DIST}if __name__ == '__main__':\n    dist.init_process_group('gloo')\n",
            "from pool import new_group\n\nGROUP = new_group([0, 1])\n",
        ],
    ),
    "group-without-timeout": (
        [
            f"{DIST}def f(t):\n    dist.init_process_group('gloo', timeout=t)\n    return dist.new_group([0])\n",
            f"{DIST}class A:\n    def f(self, t):\n        self.a = dist.new_group(timeout=t)\n"
            "        self.b = dist.new_group(ranks=[1])\n",
        ],
        [
            f"{DIST}def f(t):\n    return dist.new_group([0], timeout=t), dist.new_group([1], timeout=t)\n",
            f"{DIST}def f(t, **more):\n    return dist.new_group([0], timeout=t), dist.new_group([1], **more)\n",
        ],
    ),
    "update-without-pause": (
        [
            f"{DIST}class E:\n    def update_weights_from_distributed(self, meta):\n        for p in meta:\n"
            "            dist.broadcast(p, src=0, group=self.g)\n",
            f"{DIST}class E:\n    {SEND}        self.log('start')\n        dist.all_reduce(meta)\n",
        ],
        [
            f"{DIST}class E:\n    {SEND}        dist.barrier()\n\n    def update(self, meta):\n"
            "        self.pause()\n        self._update_weights_from_distributed(meta)\n",
            f"class E:\n    {SEND}        self.send(meta)\n",
        ],
    ),
    "unguarded-mask-division": (
        [
            "def f(loss, attention_mask):\n    total = (loss * attention_mask).sum()\n"
            "    return total / attention_mask.sum()\n"
        ],
        [],
    ),
    "unmasked-numerator": (
        [
            "def f(logp, loss_mask):\n    return logp.sum(-1) / loss_mask.sum(-1).clamp(min=1)\n",
            "def f(self, kl, mask):\n    mean = kl.sum() / mask.sum().clamp(min=1)\n    return mean\n",
        ],
        [
            "def f(x, mask):\n    return (x * mask).sum() / mask.sum().clamp(min=1)\n",
            "def f(x, counts):\n    return x.sum() / counts.sum().clamp(min=1)\n",
        ],
    ),
    "dropped-result": (
        ["import torch\ndef f(x, m):\n    x.masked_fill(m, 0.0)\n    return x\n"],
        [
            "def f(text):\n    return text.strip()\n",
            "def f(parser, text):\n    parser.feed(text)\n",
        ],
    ),
    "host-sync-in-loop": (
        [
            "import torch\ndef forward(self, xs):\n    out = []\n    for x in xs:\n        out.append(x.tolist())\n",
            "import torch\ndef step(self, mbs):\n    while mbs:\n        self.total += mbs.pop().sum().item()\n",
        ],
        [
            "import torch\ndef train_batch(x):\n    for n in x.tolist():\n        print(n)\n",
            "import torch\ndef report(xs):\n    return [x.item() for x in xs]\n",
        ],
    ),
    "histogram-end": (
        [
            "import torch\ndef f(self, x):\n    return torch.histc(x, bins=self.n, min=0, max=self.n - 1)\n",
            "import torch\ndef f(x):\n    return x.float().histc(bins=E, max=E - 1)\n",
        ],
        [
            "import torch\ndef f(x, n):\n    return torch.histc(x, bins=n - 1, min=0, max=n - 1)\n",
            "import torch\ndef f(x, n):\n    return torch.bincount(x, minlength=n)\n",
        ],
    ),
    "file-in-episode": (
        [
            f"{EPISODE}        with open(d) as f:\n            return f.read()\n",
            f"{EPISODE}        for row in d:\n            open(row, 'w').write('x')\n",
        ],
        [
            f"{EPISODE}        return await asyncio.to_thread(read, d)\n",
            f"{EPISODE}        return self.files.open(d)\n",
        ],
    ),
    "never-awaited": (
        ["class B:\n    async def stop(self):\n        pass\n\n    async def run(self):\n        self.stop()\n"],
        ["async def save():\n    pass\n\n\ndef main(loop):\n    loop.run_until_complete(save())\n"],
    ),
    "dropped-task": (
        [
            "import asyncio\nasync def f(g):\n    asyncio.ensure_future(g())\n",
            "import asyncio\nclass A:\n    async def f(self):\n        asyncio.create_task(self.g())\n"
            "        return 1\n",
        ],
        [
            "import asyncio\nasync def f(g):\n    await asyncio.create_task(g())\n",
            "import asyncio\nasync def f(g):\n    async with asyncio.TaskGroup() as tasks:\n"
            "        tasks.create_task(g())\n",
        ],
    ),
    "endless-retry": (
        [
            "def f(g):\n    while True:\n        try:\n            return g()\n        except Exception:\n"
            "            continue\n",
            "import time\ndef f(g):\n    while True:\n        try:\n            return g()\n"
            "        except Exception as e:\n            print(e)\n            time.sleep(1)\n",
        ],
        [
            "def f(g):\n    for _ in range(3):\n        try:\n            return g()\n        except Exception:\n"
            "            continue\n",
            "def f(g):\n    n = 0\n    while True:\n        try:\n            return g()\n        except Exception:\n"
            "            n += 1\n            if n > 3:\n                raise\n",
        ],
    ),
    "unknown-attribute": (
        [f"{ARGS}def f(args: Args):\n    if args.verbose:\n        return args.size\n"],
        [f"{ARGS}def f(args):\n    return args.verbose\n"],
    ),
    "field-order": (
        [
            f"{CONFIG}    x: list = field(default_factory=list)\n    y: int\n",
            f"{CONFIG}    a: str\n    x: int = 1\n    y: int\n    z: int = 2\n",
        ],
        [f"{CONFIG}    y: int\n    x: int = 1\n"],
    ),
    "mutable-default": (
        ["class A:\n    def f(self, rows=[]):\n        rows.extend(self.x)\n"],
        ["def f(x, seen=None):\n    seen = seen or []\n    seen.append(x)\n"],
    ),
    "assert-in-config": (
        [
            "class TrainerConfig:\n    def __post_init__(self):\n        assert self.mode in ('a', 'b'), self.mode\n",
            "class LossConfig:\n    def __post_init__(self):\n        if self.clip:\n"
            "            assert self.clip > 0\n",
        ],
        [
            "class RunConfig:\n    def __post_init__(self):\n        if self.n <= 0:\n"
            "            raise ValueError('n')\n",
            "class RunConfig:\n    def f(self):\n        assert self.n > 0\n",
        ],
    ),
    "literal-in-config": (
        [
            f"{CONFIG}    kind: Literal['a', 'b'] | None = None\n",
            f"{CONFIG}    size: int = 1\n    kind: Literal['a', 'b'] = 'a'\n",
        ],
        [
            f"{CONFIG}    kind: str = 'a'\n",
            "import omegaconf\nfrom typing import Literal\n\n\ndef f(kind: Literal['a', 'b']):\n    return kind\n",
        ],
    ),
    "unsafe-deserialisation": (
        [
            "import pickle\ndef f(request):\n    return pickle.loads(request.body)\n",
            "import dill as d\ndef f(data):\n    return d.loads(data)\n",
        ],
        ["import json\ndef f(data):\n    return json.loads(data)\n"],
    ),
    "unsafe-torch-load": (
        [
            "import torch\nstate = torch.load('a.pt', weights_only=False)\n",
            "import torch\ndef f(p):\n    with open(p, 'rb') as g:\n"
            "        return torch.load(g, 'cpu', weights_only=False)\n",
        ],
        [
            "import torch\ndef f(p, safe):\n    return torch.load(p, weights_only=safe)\n",
            "import pkg\ndef f(p):\n    return pkg.load(p, weights_only=False)\n",
        ],
    ),
    "default-torch-load": (["import torch\ndef f(p):\n    return [torch.load(each) for each in p]\n"], []),
    "unsafe-yaml": (
        [
            "import yaml\ndef f(t):\n    return yaml.load(t, Loader=yaml.UnsafeLoader)\n",
            "import yaml\nx = yaml.unsafe_load('a')\n",
        ],
        [
            "import yaml\ndef f(t):\n    return yaml.load(t, yaml.CSafeLoader)\n",
            "import json\ndef f(t):\n    return json.load(t)\n",
        ],
    ),
    "shell-from-values": ([], ["import subprocess\ndef f(p):\n    subprocess.run(['rm', '-r', p], shell=False)\n"]),
    "evaluated-text": (
        ["def f(code):\n    exec(code)\n", "def f(rows):\n    return [eval(row['expr']) for row in rows]\n"],
        [],
    ),
    "open-address": (
        ["from flask import Flask\napp = Flask('a')\ndef f():\n    app.run(host='0.0.0.0', port=1)\n"],
        ["def f(host):\n    return host == '0.0.0.0'\n"],
    ),
    "wildcard-import": (
        ["from json import *\nprint(loads('1'))\n", "try:\n    from fast import *\nexcept ImportError:\n    pass\n"],
        ["import os.path\n", "from os import path as p\n"],
    ),
    "swallowed-error": (
        [
            "def f(g):\n    try:\n        g()\n    except:\n        pass\n",
            "def f(xs, g):\n    for x in xs:\n        try:\n            g(x)\n        except Exception:\n"
            "            continue\n",
        ],
        ["def f(g):\n    try:\n        return g()\n    except Exception as e:\n        print(e)\n"],
    ),
    "torn-state": (
        [
            "import json\ndef dump_checkpoint(path, s):\n    with open(path, 'w') as f:\n        json.dump(s, f)\n",
            "class A:\n    def _save_progress(self):\n        open(self.path, 'wb').write(self.data)\n",
        ],
        [
            "def load_state(p):\n    with open(p) as f:\n        return f.read()\n",
            "def save_table(p, s):\n    with open(p, 'w') as f:\n        f.write(s)\n",
        ],
    ),
    "silent-getattr": (
        [
            "class A:\n    def __getattr__(self, name):\n        if name in self.d:\n            return self.d[name]\n",
            "class A:\n    def __getattr__(self, name):\n        if name in self.d:\n            return self.d[name]\n"
            "        else:\n            print(name)\n            return None\n",
        ],
        [
            "class A:\n    def __getattr__(self, name):\n        return getattr(self.inner, name)\n",
            "def __getattr__(name):\n    return None\n",
        ],
    ),
    "reward-swallows": (
        [
            f"{REWARD}    try:\n        return float(g(completions))\n    except:\n        return 0.0\n",
            f"{REWARD}    try:\n        value = g(completions)\n    except Exception as e:\n        print(e)\n"
            "        return -1.0\n    return float(value)\n",
        ],
        [
            f"{REWARD}    return float(completions == answer)\n",
            "def other(x):\n    try:\n        return float(x)\n    except Exception:\n        return 0.0\n",
        ],
    ),
    "reward-unguarded": (
        [f"{REWARD}    return float(completions.split('#')[1])\n"],
        ["def parse(text):\n    return float(text)\n"],
    ),
    "reward-no-number": (
        [f"{REWARD}    if completions:\n        return 1.0\n    return 'wrong'\n"],
        [f"{REWARD}    if completions:\n        return 1.0\n    return -0.5\n"],
    ),
    "default-group-rank": (
        [f"{DIST}def part(x, process_group):\n    n = dist.get_world_size()\n    return x.chunk(n)\n"],
        [],
    ),
    "mask-not-shifted": (
        [
            "import torch\ndef loss(batch, nll):\n    labels = batch['input_ids'].roll(-1, dims=-1)\n"
            "    mask = batch['loss_mask']\n    return (nll(labels) * mask).sum()\n",
            "import torch\ndef f(d, logp_of):\n    labels = torch.roll(d['input_ids'], -1, -1)\n"
            "    logp = logp_of(labels)\n    m = d['loss_mask'].float()\n"
            "    return (logp * m).sum() / m.sum().clamp(min=1)\n",
        ],
        [],
    ),
    "trajectory-without-versions": (
        [
            f"{EPISODE}        return dict(input_ids=1, loss_mask=2, logprobs=3)\n",
            f"{EPISODE}        row = {{'input_ids': 1, 'loss_mask': 2, 'logprobs': 3, 'rewards': 4}}\n"
            f"        return row\n",
        ],
        [],
    ),
    "group-order-lost": (
        [
            "import random\ndef f(samples, group_size):\n    random.shuffle(samples)\n"
            "    return [samples[i : i + group_size] for i in range(0, len(samples), group_size)]\n"
        ],
        ["import random\ndef f(groups):\n    random.shuffle(groups)\n    return [row for g in groups for row in g]\n"],
    ),
    "pair-halves-equal": (
        [
            "def f(x):\n    chosen = x[1::2]\n    rejected = x[1::2]\n    return chosen - rejected\n",
            "def f(logps):\n    chosen_logps = logps[::2]\n    rejected_logps = logps[::2]\n"
            "    return chosen_logps - rejected_logps\n",
        ],
        [
            "def f(x):\n    first = x[::2]\n    again = x[::2]\n    return first - again\n",
            "def f(x, y):\n    chosen = x[::2]\n    rejected = y[::2]\n    return chosen - rejected\n",
        ],
    ),
    "unstable-seed": (["import torch\ndef f(path):\n    torch.manual_seed(id(path))\n"], []),
    "undefined-name": (["class A:\n    def f(self):\n        return json.dumps(self.x)\n\n    x = 1\n"], []),
    "unknown-self-attribute": (
        [
            "class A:\n    def __init__(self, n):\n        self.n = n\n\n    def f(self):\n"
            "        self.reset()\n        return self.n\n"
        ],
        [],
    ),
    "method-mismatch": (
        [
            "class A:\n    def g(self, a, b):\n        return a + b\n\n    def f(self):\n        return self.g(1)\n",
            "class A:\n    def g(self, a):\n        return a\n\n    async def f(self):\n        return self.g(1, 2)\n",
        ],
        [],
    ),
    "one-kind-of-device": (
        [
            "import torch\nfrom p import current_platform\n\n\ndef f():\n    torch.cuda.synchronize()\n",
            "import torch\nfrom p import current_accelerator\n\n\ndef f(n):\n    torch.cuda.set_device(n)\n",
        ],
        [],
    ),
    "sampler-without-epoch": (
        [
            "class T:\n    def loader(self, d):\n        return DistributedSampler(d, num_replicas=2)\n",
            "def make(d, n):\n    return DataLoader(d, batch_size=n, sampler=DistributedSampler(d))\n",
        ],
        [
            "def make(d, rank):\n    sampler = DistributedSampler(d, rank=rank)\n    return list(sampler)\n",
            "class T:\n    def loader(self, d):\n        return RandomSampler(d)\n",
        ],
    ),
    "exit-raises-again": (
        [
            "class A:\n    async def __aexit__(self, kind, error, trace):\n        self.close()\n"
            "        if error is not None:\n            raise error\n",
            "class A:\n    def __exit__(self, exc_type, exc_value, tb):\n        if exc_type:\n"
            "            raise exc_value\n",
        ],
        [
            "class A:\n    def __exit__(self, kind, error, trace):\n        self.close()\n",
            "class A:\n    def run(self, kind, error):\n        if error:\n            raise error\n",
        ],
    ),
    "dead-assignment": (
        [
            "def f(x, mask):\n    loss = (x * mask).sum()\n    loss = x.mean()\n    return loss\n",
            "def f(c):\n    if c:\n        n = c.size\n        n = c.count\n        return n\n    return 0\n",
        ],
        [],
    ),
    "socket-left-open": (
        [
            "import socket\ndef f(port):\n    probe = socket.socket(socket.AF_INET)\n"
            "    return probe.connect_ex(('', port))\n",
            "from socket import socket as make\nimport socket\ndef f(h):\n    s = socket.socket()\n"
            "    s.connect(h)\n    s.sendall(b'x')\n",
        ],
        [],
    ),
    "route-without-key": (
        [
            f"{TABLE}@app.put('/weights')\ndef weights(r):\n    r.load()\n",
            f"{TABLE}@router.delete('/session')\nasync def session(r):\n    r.drop()\n",
        ],
        [f"{TABLE}@app.post('/d')\ndef d(r):\n    check_key(r)\n"],
    ),
    "crossed-branches": (["def f(self):\n    return 'values' if self.is_critic else 'values_critic'\n"], []),
    "error-returned": (
        ["def f(self, x):\n    if x:\n        return x\n    return NotImplementedError(x)\n"],
        ["def f(make):\n    return make.error()\n"],
    ),
    "option-without-effect": (
        ["def add(parser):\n    parser.add_argument('-v', '--verbose', action='store_true', default=True)\n"],
        ["def add(parser):\n    parser.add_argument('-v', '--verbose', action='store_true')\n"],
    ),
    "parameter-ignored": (
        [
            "".join(
                f"class {name}(Writer):\n    def put(self, row, step):\n        v = row\n"
                f"        self.run.put(v{rest})\n\n\n"
                for name, rest in (("A", ", step"), ("B", ", step"), ("C", ", step"), ("D", ""))
            )
        ],
        [],
    ),
    "strings-run-together": (
        [
            "def f(log):\n    log.info(\n        'rows of this batch are in'\n"
            "        'another order than before'\n    )\n"
        ],
        [],
    ),
    "unchecked-choice": (
        [
            f"{CONFIG}    kind: str = {CHOSEN}\n    form: str = {CHOSEN}\n\n    def __post_init__(self):\n"
            "        if self.form not in ('a', 'b'):\n            raise ValueError('form')\n",
            f"{CONFIG}    where: str = {CHOSEN}\n    side: str = {CHOSEN}\n\n    def __post_init__(self):\n"
            "        assert self.where in ('a', 'b')\n",
        ],
        [
            f"{CONFIG}    how: str = {CHOSEN}\n\n    def __post_init__(self):\n        if self.how not in ('a', 'b'):\n"
            "            raise ValueError('how')\n"
        ],
    ),
    "unknown-member": (
        ["class Store:\n    kind = 1\n\n    def load(self): ...\n\n\ndef f(p):\n    return Store.lode(p)\n"],
        [],
    ),
    "version-not-set": (
        [
            "class E:\n    def update_weights_a(self, m):\n        self.load(m)\n        self.set_version(m)\n\n"
            "    def update_weights_b(self, m):\n        self.load(m)\n        self.set_version(m)\n\n"
            "    def update_weights_c(self, m):\n        self.load(m)\n        self.flush()\n",
            "class F:\n    def update_weights_x(self, m):\n        self.receive(m)\n        self.set_version(m)\n\n"
            "    def update_weights_y(self, m):\n        self.send(m)\n        self.set_version(m)\n\n"
            "    def update_weights_z(self, m):\n        self.copy(m)\n        self.log('done')\n",
        ],
        [
            "class E:\n    def update_weights(self, m):\n        self.load(m)\n",
            "class E:\n    def load_a(self, m):\n        self.set_version(m)\n\n    def load_b(self, m):\n"
            "        self.set_version(m)\n\n    def load_c(self, m):\n        self.flush()\n",
        ],
    ),
}
RUFF: dict[str, tuple[list[str], list[str]]] = {
    "stray-comma": (
        ["x = 1,\n", "def f(self, n):\n    self.size = n,\n", "def f(x):\n    return x,\n"],
        ["x = (1,)\n", "a, b = 1, 2\n", "def f(x, y):\n    return x, y\n"],
    ),
    "assignment-in-assert": (
        [
            "def f(x):\n    assert (y := x) > 1\n    return y\n",
            "def f(g):\n    assert isinstance((r := g()), int)\n    return r\n",
        ],
        ["def f(x):\n    assert x\n"],
    ),
    "changed-while-iterating": (
        [
            "def f(xs):\n    for xs in xs.values():\n        print(xs)\n",
            "def f(d):\n    for d, v in d.items():\n        print(v)\n",
        ],
        [
            "def f(xs):\n    for x in xs.values():\n        print(x)\n",
            "def f(d):\n    for k, v in d.items():\n        print(k, v)\n",
        ],
    ),
    "definition-replaced": (
        [
            "class A:\n    def f(self):\n        return 1\n\n    def f(self):\n        return 2\n",
            "import json\nimport json\n\n\nprint(json)\n\n\ndef g(): ...\n\n\ndef g():\n    return 1\n",
        ],
        ["class A:\n    @property\n    def f(self):\n        return 1\n\n    @f.setter\n    def f(self, x): ...\n"],
    ),
    "environment-replaced": (
        ["import os\nx = 1\nos.environ = dict(A='1')\n", "import copy, os\ne = copy.copy(os.environ)\n"],
        ["import os\nos.environ.update(A='1')\n", "import os\ne = os.environ.copy()\n"],
    ),
    "exit-drops-error": (
        [
            "def f(xs, g):\n    for x in xs:\n        try:\n            g(x)\n        finally:\n            break\n",
            "def f(xs, g):\n    for x in xs:\n        try:\n            g(x)\n        finally:\n            continue\n",
        ],
        [
            "def f(g):\n    try:\n        return g()\n    finally:\n        g()\n",
            "def f(g):\n    try:\n        g()\n    except OSError:\n        return 1\n",
        ],
    ),
    "instance-kept-by-cache": (
        [
            "from functools import cache\nclass A:\n    @cache\n    def f(self):\n        return 1\n",
            "from functools import lru_cache\nclass A:\n    @lru_cache(maxsize=None)\n    def f(self, x):\n"
            "        return x\n",
        ],
        ["from functools import cached_property\nclass A:\n    @cached_property\n    def f(self):\n        return 1\n"],
    ),
    "misplaced-statement": (["return 1\n"], ["def f():\n    return 1\n"]),
    "misread-function": (["print('a'.strip('http://'))\n"], ["print('a'.removeprefix('http://'))\n"]),
    "no-effect": (["def f(x):\n    x < 1\n    return x\n"], ["def f(x):\n    return x < 1\n"]),
    "not-an-exception": (
        ["def f(g):\n    try:\n        g()\n    except 'text':\n        pass\n"],
        [
            "def f():\n    raise ValueError('text')\n",
            "def f(g):\n    try:\n        g()\n    except (ValueError, OSError):\n        g()\n",
        ],
    ),
    "old-numpy-name": (
        ["import numpy as np\nx = np.array([1], dtype=np.int)\n", "import numpy as np\nx = np.Inf\n"],
        ["import numpy as np\nx = np.array([1], dtype=int)\n", "import numpy as np\nx = np.inf\n"],
    ),
    "repeated-key": (["f = dict\nx = {'a': 1, 'b': 2, 'a': 3, 'c': 4}\n"], ["x = {1, 2, 3}\n"]),
    "request-without-timeout": (
        [
            "import requests\nrequests.post('http://a.example', json={})\n",
            "import requests as r\nr.get('http://a.example', timeout=None)\n",
        ],
        [
            "import requests\nrequests.post('http://a.example', json={}, timeout=3)\n",
            "def f(client):\n    client.get('a')\n",
        ],
    ),
    "shared-temporary-name": (
        ["from tempfile import mktemp\nx = mktemp('.txt')\n", "import tempfile as t\nx = t.mktemp(dir='a')\n"],
        ["import tempfile\nx = tempfile.mkstemp()\n", "import tempfile\nx = tempfile.NamedTemporaryFile()\n"],
    ),
    "unpacked-archive": (
        ["import tarfile\ntarfile.open('a').extractall()\n", "import tarfile\ndef f(a):\n    a.extractall('b')\n"],
        ["import tarfile\ntarfile.open('a').extractall(filter='data')\n", "def f(a):\n    a.extract('b')\n"],
    ),
    "unreachable-handler": (
        [
            "def f(g):\n    try:\n        g()\n    except (ValueError and KeyError):\n        g()\n",
            "def f(g):\n    try:\n        g()\n    except ValueError:\n        g()\n    except ValueError:\n"
            "        return\n",
        ],
        [
            "def f(g):\n    try:\n        g()\n    except ValueError:\n        g()\n    except KeyError:\n"
            "        return\n",
            "def f(g):\n    try:\n        g()\n    except KeyError:\n        g()\n    except Exception:\n"
            "        return\n",
        ],
    ),
    "unverified-connection": (
        [
            "import requests\nrequests.post('https://a.example', verify=False, timeout=5)\n",
            "import ssl\nc = ssl._create_unverified_context()\n",
        ],
        [
            "import requests\nrequests.get('https://a.example', timeout=5)\n",
            "import ssl\nc = ssl.create_default_context()\n",
        ],
    ),
}
FEW = frozenset(
    [
        *("frozen-import", "heavy-package-root", "logger-of-another-kind", "main-only-name", "registry-target"),
        *("test-in-library", "toothless-test"),
    ]
)
"""Rules about whole repositories, whose cases are tests of their own."""


@pytest.fixture(scope="module")
def said(shared_world) -> set[tuple[str, str]]:
    """What is found in all cases at once: rule and path."""
    files: dict[str, str | None] = {}
    for rule, (bad, good) in MORE.items():
        name = rule.replace("-", "_")
        files |= {f"{name}_bad_{number}.py": text for number, text in enumerate(bad)}
        files |= {f"{name}_good_{number}.py": text for number, text in enumerate(good)}
    shared_world.commit(files)
    return {(rule, path) for rule, path, _ in shared_world.found()}


@pytest.mark.sample(21)
@pytest.mark.parametrize("rule", MORE)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(said, rule):
    wrong = {f"{rule.replace('-', '_')}_bad_{number}.py" for number in range(len(MORE[rule][0]))}
    right = {f"{rule.replace('-', '_')}_good_{number}.py" for number in range(len(MORE[rule][1]))}
    found = {path for name, path in said if name == rule}
    assert wrong <= found
    assert found.isdisjoint(right)


def test_rules_of_ruff_find_what_is_wrong_and_are_silent_on_what_is_right():
    texts = {
        f"{rule} {kind} {number}": text
        for rule, cases in RUFF.items()
        for kind, some in zip(("wrong", "right"), cases, strict=True)
        for number, text in enumerate(some)
    }
    found, note = linter.lint(texts)
    assert note == ""
    reported = {name for name, rows in found.items() if any(rule == name.split()[0] for rule, _ in rows)}
    assert reported == {name for name in texts if " wrong " in name}


def test_every_rule_has_three_cases_of_each_kind():
    counts: dict[str, list[int]] = {}
    pages = ("bounds", "clues", "evidence", "fixes", "lifetimes", "loops", "meaning", "new_files", "paths", "slips")
    named = ["test_rules_in_files.py", *(f"test_rules_of_{page}.py" for page in pages)]
    tables = [runpy.run_path(str(Path(__file__).with_name(each)))["CASES"] for each in named]
    tables += [runpy.run_path(str(Path(__file__).with_name("test_linted_rules.py")))["CASES"], MORE, RUFF]
    for table in tables:
        for rule, cases in table.items():
            counts[rule] = [old + len(new) for old, new in zip(counts.get(rule, [0, 0]), cases, strict=True)]
    asked = {name for name, rule in RULES.items() if rule.in_file is not None} - FEW
    assert asked <= counts.keys()
    assert {name: count for name, count in counts.items() if name not in FEW and min(count) < 3} == {}
