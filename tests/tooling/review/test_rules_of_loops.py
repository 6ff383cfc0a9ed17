"""Rules about loops, copied lines, kept state and backends: each finds its cases and nothing beside them."""

from __future__ import annotations

import ast
import time
from dataclasses import replace

import pytest

from tooling.python.module import Module
from tooling.review.repository.git import ReviewedClone
from tooling.review.repository.side import WORK_TREE, Side
from tooling.review.rules import bounds, messages, services, slips
from tooling.review.rules.catalogue import RULES

WHILE = "def f(self, request):\n    spec = request.spec\n    out = []\n    while len(out) < spec.most:\n"
HTTP = "import aiohttp\n\n\n"
ERRORS = "".join(f"def e{n}(app):\n    return jsonify({{'error': 'no {n}'}}), 400\n\n\n" for n in range(3))
GUARDED = (
    "import torch.distributed as dist\n\n\nclass T:\n    def a(self):\n        if not is_single_controller():\n"
    "            dist.barrier()\n\n"
)


def payload(owner: str, method: str, *options: str) -> str:
    """A backend whose method sends these options."""
    sent = ", ".join(f"'{name}': g.{name}" for name in options)
    return f"class {owner}:\n    def {method}(self, g):\n        return {{{sent}}}\n\n\n"


def siblings(base: str, *, last: str, declared: str = "env: str", others: str = "env = 'X'") -> str:
    """A base that declares something, two classes that set it, and a third one."""
    text = f"class {base}:\n    {declared}\n\n\n"
    text += "".join(f"class {base}{name}({base}):\n    {others}\n\n\n" for name in "AB")
    return f"{text}class {base}C({base}):\n    {last}\n"


STEP = "def f(self, batches, model, optimizer, total):\n    for batch in batches:\n        loss = model(batch)\n"
STEP += "        loss.backward()\n"
FOUR = ("top_p", "top_k", "stop", "n")
CASES: dict[str, tuple[list[str], list[str]]] = {
    "stride-twice": (
        [
            "def f(x, n, k):\n    for i in range(0, n, k):\n        print(x[slice(i * k, (i + 1) * k)])\n",
            "def f(self, x, n):\n    for i in range(0, n, self.size):\n        x[self.size * i] = 0\n",
            "def f(rows, size):\n    out = []\n    for start in range(0, len(rows), size):\n        if rows:\n"
            "            out.append(rows[start * size])\n    return out\n",
        ],
        [
            "def f(x, n, k):\n    for i in range(0, n, k):\n        print(x[i : i + k])\n",
            "def f(x, n, k):\n    for i in range(n // k):\n        print(x[i * k : (i + 1) * k])\n",
            "def f(x, n):\n    for i in range(0, n, 2):\n        print(x[i * 2])\n",
        ],
    ),
    "bound-moved": (
        [
            f"{WHILE}        new = self.ask(request)\n        out.extend(new)\n        request.spec.most -= len(new)\n",
            "def f(spec, sample):\n    out = []\n    while len(out) < spec.most and spec.on:\n        out += sample()\n"
            "        spec.most -= 1\n",
            "def f(self):\n    while len(self.out) <= self.spec.most:\n        self.out.append(1)\n"
            "        self.spec.most -= 1\n",
        ],
        [
            f"{WHILE}        out.extend(self.ask(request))\n",
            "def f(request, sample):\n    out, most = [], request.most\n    while len(out) < most:\n"
            "        out += sample()\n        request.most -= 1\n",
            "def f(xs, low, high):\n    while low < high:\n        low += 1\n        high -= 1\n    return xs[low]\n",
        ],
    ),
    "reference-rewritten": (
        [
            "def f(d, n):\n    for k, v in d.items():\n        if v.shape[:2] == d['mask'].shape[:2]:\n"
            "            d[k] = v[:, :n]\n",
            "def f(x, n):\n    for i in range(n):\n        x[i] = x[i] - x.mean()\n",
            "import torch\n\n\ndef f(x, groups):\n    for start, end in groups:\n"
            "        x[start:end] = x[start:end] / torch.max(x)\n",
        ],
        [
            "def f(d, n):\n    shape = d['mask'].shape\n    for k, v in d.items():\n        if v.shape == shape:\n"
            "            d[k] = v[:, :n]\n",
            "def f(x, n):\n    for i in range(n):\n        x[i] = x[i] - x[i].mean()\n",
            "def f(x, y, n):\n    for i in range(n):\n        y[i] = x[i] - x.mean()\n",
        ],
    ),
    "session-per-call": (
        [
            f"{HTTP}class C:\n    async def ask(self, url):\n        async with aiohttp.ClientSession() as s:\n"
            "            while url:\n                url = await s.get(url)\n",
            "import requests\n\n\ndef f(urls):\n    for url in urls:\n        requests.Session().get(url, timeout=9)\n",
            "import httpx\n\n\nasync def f(urls):\n    while urls:\n        async with httpx.AsyncClient() as c:\n"
            "            await c.get(urls.pop())\n",
        ],
        [
            f"{HTTP}class C:\n    async def run(self, urls):\n        async with aiohttp.ClientSession() as s:\n"
            "            return [await self.ask(s, url) for url in urls]\n",
            f"{HTTP}async def main(urls):\n    async with aiohttp.ClientSession() as s:\n        for url in urls:\n"
            "            await s.get(url)\n",
            "import requests\n\n\ndef f(urls):\n    s = requests.Session()\n    for url in urls:\n"
            "        s.get(url, timeout=9)\n",
        ],
    ),
    "error-key-odd": (
        [
            f"{ERRORS}def f():\n    return jsonify({{'detail': 'no rank'}}), 404\n",
            ERRORS.replace("jsonify", "web.json_response").replace("), 400", ", status=400)")
            + "def f():\n    return web.json_response({'message': 'no'}, status=500)\n",
            ERRORS.replace("jsonify", "JSONResponse").replace("), 400", ", status_code=400)")
            + "def f():\n    return JSONResponse({'msg': 'no', 'rank': 1}, status_code=503)\n",
        ],
        [
            ERRORS,
            f"{ERRORS}def f():\n    return jsonify({{'message': 'done'}}), 200\n",
            ERRORS + ERRORS.replace("'error'", "'detail'").replace("def e", "def d"),
        ],
    ),
    "controller-unguarded": (
        [
            f"{GUARDED}    def b(self):\n        dist.barrier()\n",
            f"{GUARDED}    def b(self, x):\n        if x:\n            dist.all_reduce(x)\n",
            f"{GUARDED}    def b(self):\n        current_platform.synchronize()\n",
        ],
        [
            f"{GUARDED}    def b(self):\n        if is_single_controller():\n            return\n"
            "        dist.barrier()\n",
            f"{GUARDED}    def b(self):\n        self.engine.barrier()\n",
            "import torch.distributed as dist\n\n\nclass T:\n    def a(self):\n"
            "        return is_single_controller()\n\n    def b(self):\n        dist.barrier()\n",
        ],
    ),
    "payload-parity": (
        [
            payload("A", "build_a", *FOUR, "seed") + payload("B", "build_a", *FOUR),
            payload("A", "build_b", *FOUR, "seed")
            + payload("B", "build_b", *FOUR, "seed")
            + payload("C", "build_b", *FOUR),
            payload("A", "build_c", *FOUR, "seed") + payload("B", "build_c", *FOUR, "lora"),
        ],
        [
            payload("A", "build_d", *FOUR) + payload("B", "build_d", *FOUR),
            payload("A", "build_e", *FOUR, "seed") + payload("B", "build_e", *FOUR) + payload("C", "build_e", *FOUR),
            payload("A", "build_f", *FOUR, "seed") + payload("B", "other_f", *FOUR),
        ],
    ),
    "sibling-without": (
        [
            siblings("Platform", last="name = 'c'"),
            siblings("Backend", last="pass", declared="key: str", others="key = 1"),
            siblings("Store", last="def f(self):\n        return self.env"),
        ],
        [
            siblings("Plain", last="env = ''"),
            siblings("Given", last="pass", declared="env: str = 'D'"),
            siblings("Own", last="def __init__(self):\n        self.env = 'Y'"),
        ],
    ),
    "class-attribute-filled": (
        [
            "class A:\n    rows = []\n\n    def add(self, row):\n        self.rows.append(row)\n",
            "class A:\n    seen: dict = {}\n\n    def mark(self, key):\n        self.seen[key] = 1\n",
            "from collections import defaultdict\n\n\nclass A:\n    groups = defaultdict(list)\n\n"
            "    def add(self, key):\n        self.groups.setdefault(key, [])\n",
        ],
        [
            "class A:\n    rows = []\n\n    def __init__(self):\n        self.rows = []\n\n"
            "    def add(self, row):\n        self.rows.append(row)\n",
            "from typing import ClassVar\n\n\nclass A:\n    rows: ClassVar[list] = []\n    CACHE = {}\n\n"
            "    def add(self, row):\n        self.rows.append(row)\n        self.CACHE[row] = 1\n",
            "class A(BaseModel):\n    rows: list = []\n\n    def add(self, row):\n        self.rows.append(row)\n",
        ],
    ),
    "graph-kept": (
        [
            f"{STEP}        total += loss\n",
            f"{STEP}        optimizer.zero_grad()\n        self.total += loss\n",
            "def f(batches, model):\n    total = 0\n    while batches:\n        loss = model(batches.pop())\n"
            "        total += loss\n        loss.backward()\n    return total\n",
        ],
        [
            f"{STEP}        total += loss.item()\n",
            "def f(batches, model):\n    total = 0\n    for batch in batches:\n        total += model(batch)\n"
            "    total.backward()\n",
            f"{STEP}        total += loss.detach()\n",
        ],
    ),
    "half-renamed": (
        [
            "def f(g, chosen_ids, chosen_mask, rejected_ids, rejected_mask):\n    chosen = g(chosen_ids, chosen_mask)\n"
            "    rejected = g(rejected_ids, chosen_mask)\n    return chosen, rejected\n",
            "def f(g, train_rows, train_size, eval_rows, eval_size):\n    train_x = g(train_rows) / train_size\n"
            "    eval_x = g(eval_rows) / train_size\n    return train_x, eval_x\n",
            "def f(r):\n    left_low = r(0)\n    right_low = r(1)\n    left_high = r(2)\n    right_high = r(3)\n"
            "    left_mid = (left_low + left_high) / 2\n    right_mid = (right_low + left_high) / 2\n"
            "    return left_mid, right_mid\n",
        ],
        [
            "def f(g, chosen_ids, chosen_mask, rejected_ids, rejected_mask):\n    chosen = g(chosen_ids, chosen_mask)\n"
            "    rejected = g(rejected_ids, rejected_mask)\n    return chosen, rejected\n",
            "def f(g, key_states, value_states, num_key_heads):\n    key = g(key_states, num_key_heads)\n"
            "    value = g(value_states, num_key_heads)\n    return key, value\n",
            "def f(old_keys, new_keys):\n    gone = old_keys - new_keys\n    come = new_keys - old_keys\n"
            "    return gone, come\n",
        ],
    ),
    "same-twice": (
        [
            "def f(mask):\n    return mask[:, 1:].bool() & mask[:, 1:].bool()\n",
            "def f(x, g, y):\n    return g(x) if y else g(x)\n",
            "def f(x, y):\n    x[:, 1:] = x[:, 1:]\n    return x\n",
        ],
        [
            "def f(mask):\n    return mask[:, 1:].bool() & mask[:, :-1].bool()\n",
            "def f(rows):\n    return rows.pop() - rows.pop()\n",
            "def f(x, g, y):\n    return g(x) if y else g(y)\n",
        ],
    ),
    "never-reached": (
        [
            "def f(x, log):\n    y = x\n    z = y\n    return z\n    log(x)\n",
            "def f(xs, log):\n    for x in xs:\n        if x:\n            continue\n            log(x)\n",
            "def f(x):\n    if x:\n        y = x\n        raise ValueError(y)\n        x = 1\n    return x\n",
        ],
        [
            "def f(x):\n    y = x\n    z = y\n    return z\n    yield y\n",
            "def f(x, log):\n    raise NotImplementedError\n    log(x)\n",
            "def f(x, log):\n    return x\n    log(x)\n",
        ],
    ),
    "maybe-missing": (
        [
            "import re\n\n\ndef f(x):\n    return re.search('a(.)', x).group(1)\n",
            "import os\n\n\ndef f():\n    return os.environ.get('HOSTS').split(',')\n",
            "def f(row):\n    return row.get('meta')['step']\n",
        ],
        [
            "import re\n\n\ndef f(x):\n    found = re.search('a(.)', x)\n    return found.group(1) if found else ''\n",
            "import os\n\n\ndef f():\n    return os.environ.get('HOSTS', '').split(',')\n",
            "def f(row):\n    return row.get('meta', {})['step']\n",
        ],
    ),
}


RIGHT: dict[str, list[str]] = {
    "stride-twice": ["def f(n):\n    for i in range(n, 0, -1):\n        print(i * -1)\n"],
    "reference-rewritten": [
        "def f(d, items):\n    for k, v in items(d):\n        d[k] = v + 1\n",
        "def f(df, cols):\n    for c in cols:\n        df[c + '_mean'] = df.mean()\n",
        "def f(d, n):\n    for i in range(n):\n        d[i] = d[i] - d.min(i)\n",
    ],
    "session-per-call": [
        f"{HTTP}class C:\n    async def ask(self, urls):\n        async with aiohttp.ClientSession() as s:\n"
        "            for url in urls:\n                await s.get(url)\n",
    ],
    "payload-parity": [
        payload("Plot", "build_g", "width", "height", "title", "name")
        + payload("Trainer", "build_g", "rate", "steps", "name", "seed", "width"),
    ],
    "sibling-without": [
        siblings("Pair", last="def __init__(self, pair):\n        self.env, self.size = pair"),
        "class SetsEnv:\n    env = 'M'\n\n\n" + siblings("Mixed", last="pass").replace("C(Mixed)", "C(SetsEnv, Mixed)"),
        siblings("Foreign", last="pass").replace("C(Foreign)", "C(Unknown, Foreign)"),
    ],
    "class-attribute-filled": [
        "class A:\n    rows = []\n\n    class B:\n        def __init__(self, rows):\n            rows(self)\n\n"
        "        def add(self, row):\n            self.rows.append(row)\n",
    ],
    "graph-kept": [
        f"{STEP}        loss = loss.detach()\n        total += loss\n",
        f"{STEP}        loss = float(loss)\n        total += loss\n",
        f"import torch\n\n\n{STEP}        with torch.no_grad():\n            total += loss\n",
        f"{STEP}        total += loss\n        if full:\n            log(total)\n            total = 0\n",
    ],
    "maybe-missing": [
        "import re\n\n\ndef f(xs):\n    return [re.match('a', x).group() for x in xs if re.match('a', x)]\n",
        "import re\n\n\ndef f(x):\n    return re.match('a', x) and re.match('a', x).group()\n",
        "import re\n\n\ndef f(x):\n    while re.match('a', x):\n        x = re.match('a', x).group()\n",
        "def f(client):\n    return client.get('/info')['x']\n",
    ],
}
"""Ordinary code beside the cases above."""


@pytest.fixture(scope="module")
def said(shared_world) -> set[tuple[str, str]]:
    """What is found in all cases at once: rule and path."""
    files: dict[str, str | None] = {}
    for rule, (bad, good) in CASES.items():
        name = rule.replace("-", "_")
        files |= {f"{name}_bad_{number}.py": text for number, text in enumerate(bad)}
        files |= {f"{name}_good_{number}.py": text for number, text in enumerate(good)}
        files |= {f"{name}_right_{number}.py": text for number, text in enumerate(RIGHT.get(rule, ()))}
    shared_world.commit(files)
    return {(rule, path) for rule, path, _ in shared_world.found()}


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(said, rule):
    wrong = {f"{rule.replace('-', '_')}_bad_{number}.py" for number in range(len(CASES[rule][0]))}
    assert {path for name, path in said if name == rule} == wrong


def test_loggers_of_a_package_are_made_in_one_way(world):
    own = "from pkg.utils import logging\n\n"
    named = {f"pkg/m{n}.py": f"{own}logger = logging.getLogger('M{n}')\n" for n in range(8)}
    world.commit({"pkg/__init__.py": "", "pkg/utils/logging.py": "def getLogger(name):\n    return name\n", **named})
    bad = {
        "pkg/a.py": "import logging\n\nlogger = logging.getLogger(__name__)\n",
        "pkg/b.py": f"{own}logger = logging.getLogger(__name__)\n",
        "pkg/c.py": "from logging import getLogger\n\nLOG = getLogger('c')\n",
    }
    good = {
        "pkg/d.py": f"{own}logger = logging.getLogger('D')\n",
        "pkg/e.py": "import logging\n\nlogging.getLogger('urllib3').setLevel('ERROR')\n",
        "scripts/f.py": "import logging\n\nlogger = logging.getLogger(__name__)\n",
    }
    world.commit(bad | good)
    assert world.found() == [("logger-of-another-kind", path, 3) for path in bad]


def test_a_package_with_a_logging_module_prints_nothing(world):
    world.commit({"pkg/__init__.py": "", "pkg/utils/logging.py": "def getLogger(name):\n    return name\n"})
    text = "def f(x):\n    print(x)\n"
    world.commit({"pkg/a.py": text, "pkg/cli.py": text, "scripts/b.py": text, "pkg/c.py": "def f(x):\n    return x\n"})
    assert [(rule, path) for rule, path, _ in world.found()] == [("print-in-library", "pkg/a.py")]


def test_a_rule_that_raises_is_a_note_and_the_others_go_on(world, monkeypatch):
    def broken(_module, _side):
        raise AttributeError("no such attribute")

    monkeypatch.setitem(RULES, "stride-twice", replace(RULES["stride-twice"], in_file=broken))
    world.commit({"a.py": CASES["bound-moved"][0][0]})
    result = world.review()
    assert [each.rule.id for each in result.open] == ["bound-moved"]
    assert any("stride-twice failed on a.py: AttributeError: no such attribute" in note for note in result.notes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("line", ["    x{0} = []\n", "    row['k{0}'] = row['other_{0}']\n", "    self.a{0} = []\n"])
def test_long_functions_take_no_quadratic_time(line):
    text = "def f(self, n):\n    row = {}\n" + "".join(line.format(number) for number in range(1500))
    module = Module("a.py", ast.parse(text), "a", text)
    start = time.process_time()
    found = [*bounds.stride_twice(module, None), *slips.half_renamed(module, None)]
    assert (found, time.process_time() - start < 2) == ([], True)


def test_users_of_a_name_are_looked_for_once(world, monkeypatch):
    asked: list[tuple[str, ...]] = []
    grep = Side.grep
    monkeypatch.setattr(Side, "grep", lambda self, words, *more: asked.append(tuple(words)) or grep(self, words, *more))
    text = "class P:\n    a: int\n\n\n" + "".join(
        f"class P{n}(P):\n    {'b' if n < 3 else 'a'} = {n}\n\n\n" for n in range(9)
    )
    logs = "from pkg import logging\n\nlogger = logging.getLogger(__name__)\n"
    own = {"pkg/__init__.py": "", "pkg/logging.py": "def getLogger(name): ...\n"}
    world.commit({"pkg/p.py": text, "pkg/l.py": logs, "pkg/m.py": logs, **own})
    side = Side(ReviewedClone(world.root), WORK_TREE)
    assert list(services.sibling_without(side.module("pkg/p.py"), side)) == []
    for path in ("pkg/l.py", "pkg/m.py"):
        assert list(messages.logger_of_another_kind(side.module(path), side)) == []
    assert asked == [("P",), ("getLogger",)]
