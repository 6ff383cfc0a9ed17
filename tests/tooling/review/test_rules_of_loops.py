"""Rules about loops, and about servers, clients and their siblings: each finds its cases and nothing beside them."""

from __future__ import annotations

import pytest

from tooling.review.rules import loops, services

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
    "first-of-nothing": (
        [
            "import random\n\n\nclass E:\n    def __init__(self):\n        self.hosts = []\n"
            "        self.at = random.randint(0, len(self.hosts) - 1)\n",
            "def f():\n    rows = []\n    first = rows[0]\n    return first\n",
            "def f(n):\n    losses: list = []\n    scale = n\n    best = min(losses)\n    return best, scale\n",
        ],
        [
            "def f(read):\n    rows = []\n    read(rows)\n    return rows[0]\n",
            "def f(xs):\n    rows = []\n    for x in xs:\n        rows.append(x)\n    return rows[-1]\n",
            "def f():\n    rows = []\n    best = max(rows, default=0)\n    return rows[:1], best\n",
        ],
    ),
    "session-per-call": (
        [
            f"{HTTP}class C:\n    async def ask(self, url):\n        async with aiohttp.ClientSession() as s:\n"
            "            return await s.get(url)\n",
            "import requests\n\n\ndef f(urls):\n    for url in urls:\n        requests.Session().get(url, timeout=9)\n",
            "import httpx\n\n\nasync def f(urls):\n    while urls:\n        async with httpx.AsyncClient() as c:\n"
            "            await c.get(urls.pop())\n",
        ],
        [
            f"{HTTP}class C:\n    async def start(self):\n        self.session = aiohttp.ClientSession()\n",
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
}


@pytest.fixture(scope="module")
def said(shared_world) -> set[tuple[str, str]]:
    """What is found in all cases at once: rule and path."""
    files: dict[str, str | None] = {}
    for rule, (bad, good) in CASES.items():
        name = rule.replace("-", "_")
        files |= {f"{name}_bad_{number}.py": text for number, text in enumerate(bad)}
        files |= {f"{name}_good_{number}.py": text for number, text in enumerate(good)}
    shared_world.commit(files)
    return {(rule, path) for rule, path, _ in shared_world.found()}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(said, rule):
    wrong = {f"{rule.replace('-', '_')}_bad_{number}.py" for number in range(len(CASES[rule][0]))}
    assert {path for name, path in said if name == rule} == wrong


def test_every_rule_of_these_families_has_three_cases_of_each_kind():
    assert {rule.id for family in (loops, services) for rule in family.RULES} == set(CASES)
    assert {len(cases) for pair in CASES.values() for cases in pair} == {3}
