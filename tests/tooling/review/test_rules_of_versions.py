"""Rules that compare two versions of a statement: what they must find, and changes beside it that are right."""

from __future__ import annotations

import pytest

from tooling.review.rules import regressions

DIST = "import torch.distributed as dist\n\n"
GRAD = "import torch\n\n"
LOG = "import logging\nlogger = logging.getLogger('a')\n\n"

Version = tuple[str, str]
CASES: dict[str, tuple[list[Version], list[Version]]] = {
    "safeguard-dropped": (
        [
            ("def f(t):\n    t.join(timeout=5)\n", "def f(t):\n    t.join()\n"),
            ("x = torch.load(p, weights_only=True)\n", "x = torch.load(p)\n"),
            ("async def f(c):\n    await wait_for(c.get(), 5)\n", "async def f(c):\n    await c.get()\n"),
        ],
        [
            ("def f(t):\n    t.join(timeout=5)\n", "def f(t):\n    t.join(timeout=9)\n"),
            ("def f(t):\n    t.join(timeout=None)\n", "def f(t):\n    t.join()\n"),
            ("def f(t, **k):\n    t.get(timeout=5)\n", "def f(t, **k):\n    t.get(**k)\n"),
            (
                "async def f(c):\n    await wait_for(c.get(), 5)\n",
                "async def f(c):\n    async with asyncio.timeout(5):\n        await c.get()\n",
            ),
        ],
    ),
    "group-dropped": (
        [
            (
                f"{DIST}def f(x, e):\n    dist.all_reduce(x, group=e.dp)\n",
                f"{DIST}def f(x, e):\n    dist.all_reduce(x)\n",
            ),
            (f"{DIST}def f(e):\n    dist.barrier(group=e.dp)\n", f"{DIST}def f(e):\n    dist.barrier()\n"),
            (
                f"{DIST}def f(x, e):\n    dist.broadcast(x, src=0, group=e.dp)\n",
                f"{DIST}def f(x, e):\n    if e:\n        dist.broadcast(x, src=0)\n",
            ),
        ][:2],
        [
            (
                f"{DIST}def f(x, e):\n    dist.all_reduce(x, group=e.dp)\n",
                f"{DIST}def f(x, e):\n    dist.all_reduce(x, group=e.tp)\n",
            ),
            (f"{DIST}def f(x):\n    dist.all_reduce(x, group=None)\n", f"{DIST}def f(x):\n    dist.all_reduce(x)\n"),
            (
                f"{DIST}def f(x, e):\n    dist.all_reduce(x, op=1, group=e.dp)\n",
                f"{DIST}def f(x, e):\n    dist.all_reduce(x, 1, e.dp)\n",
            ),
        ],
    ),
    "await-dropped": (
        [
            (
                "async def f(c):\n    x = await c.load(1)\n    return x\n",
                "async def f(c):\n    x = c.load(1)\n    return x\n",
            ),
            (
                "async def f(c):\n    await asyncio.to_thread(c.write, 1)\n",
                "async def f(c):\n    c.write(1)\n",
            ),
            ("async def f(c):\n    return (await c.get()).rows\n", "async def f(c):\n    return c.get().rows\n"),
        ],
        [
            (
                "async def made(): ...\n\n\nasync def f():\n    return await made()\n",
                "def made(): ...\n\n\nasync def f():\n    return made()\n",
            ),
            ("async def f(c):\n    return await c.load()\n", "def f(c):\n    return c.load()\n"),
            ("async def f(c):\n    x = await c.load()\n", "async def f(c):\n    x = asyncio.create_task(c.load())\n"),
        ],
    ),
    "floor-dropped": (
        [
            ("def f(a, n):\n    return a / max(n, 1)\n", "def f(a, n):\n    return a / n\n"),
            (
                "def f(a, n):\n    return a.sum() / n.sum().clamp(min=1)\n",
                "def f(a, n):\n    return a.sum() / n.sum()\n",
            ),
            ("def f(a, n, eps):\n    return a / (n + eps)\n", "def f(a, n, eps):\n    return a / n\n"),
        ],
        [
            ("def f(a, n):\n    return a / max(n, 1)\n", "def f(a, n):\n    return a / max(n, 2)\n"),
            ("def f(a, n):\n    return a / max(n, 1)\n", "def f(a, n):\n    return a / (n + 1)\n"),
            ("def f(a, n, m):\n    return a / max(n, 1)\n", "def f(a, n, m):\n    return a / m\n"),
        ],
    ),
    "mask-dropped": (
        [
            ("def f(x, mask):\n    return (x * mask).sum()\n", "def f(x, mask):\n    return x.sum()\n"),
            ("def f(x, m):\n    return where(m.mask, x, 0).sum()\n", "def f(x, m):\n    return x.sum()\n"),
            ("def f(x, mask):\n    return x[mask].mean()\n", "def f(x, mask):\n    return x.mean()\n"),
        ],
        [
            ("def f(x, mask):\n    return (x * mask).sum()\n", "def f(x, mask):\n    return (mask * x).sum()\n"),
            (
                "def f(x, mask):\n    return (x * mask).sum()\n",
                "def f(x, mask):\n    x = x.masked_fill(~mask, 0)\n    return x.sum()\n",
            ),
            ("def f(x, weight):\n    return (x * weight).sum()\n", "def f(x, weight):\n    return x.sum()\n"),
        ],
    ),
    "gradient-guard-dropped": (
        [
            (f"{GRAD}@torch.no_grad()\ndef f(x):\n    return x\n", f"{GRAD}def f(x):\n    return x\n"),
            (f"{GRAD}@torch.inference_mode()\ndef f(x):\n    return x\n", f"{GRAD}def f(x):\n    return x + 1\n"),
            (
                f"{GRAD}def f(m, x):\n    with torch.no_grad():\n        y = m(x)\n    return y\n",
                f"{GRAD}def f(m, x):\n    y = m(x)\n    return y\n",
            ),
        ],
        [
            (
                f"{GRAD}@torch.no_grad()\ndef f(x):\n    return x\n",
                f"{GRAD}@torch.inference_mode()\ndef f(x):\n    return x\n",
            ),
            (
                f"{GRAD}@torch.no_grad()\ndef f(x):\n    return g(x)\n",
                f"{GRAD}def f(x):\n    with torch.no_grad():\n        return g(x)\n",
            ),
            (f"{GRAD}@jit\ndef f(x):\n    return x\n", f"{GRAD}def f(x):\n    return x\n"),
        ],
    ),
    "lock-dropped": (
        [
            (
                "class A:\n    def f(self):\n        with self.lock:\n            self.n += 1\n\n    def g(self):\n"
                "        with self.lock:\n            return self.n\n",
                "class A:\n    def f(self):\n        self.n += 1\n\n    def g(self):\n        with self.lock:\n"
                "            return self.n\n",
            ),
            (
                "class A:\n    async def f(self):\n        async with self._update_lock:\n"
                "            await self.send()\n"
                "            self.n = 1\n",
                "class A:\n    async def f(self):\n        await self.send()\n        self.n = 1\n"
                "        self._update_lock\n",
            ),
            (
                "def f(lock, rows):\n    with lock:\n        rows.append(1)\n",
                "def f(lock, rows):\n    if lock:\n        rows.append(1)\n",
            ),
        ],
        [
            (
                "def f(lock, rows):\n    with lock:\n        rows.append(1)\n",
                "def f(lock, rows):\n    with lock:\n        rows.append(2)\n",
            ),
            ("def f(lock, rows):\n    with lock:\n        rows.append(1)\n", "def f(rows):\n    rows.append(1)\n"),
            ("def f(p):\n    with open(p) as g:\n        h(1)\n", "def f(p):\n    h(1)\n"),
        ],
    ),
    "handler-silenced": (
        [
            (
                "def f():\n    try:\n        g()\n    except OSError:\n        raise\n",
                "def f():\n    try:\n        g()\n    except OSError:\n        pass\n",
            ),
            (
                f"{LOG}def f():\n    try:\n        return g()\n    except OSError as e:\n"
                f"        logger.error(e)\n        return 1\n",
                f"{LOG}def f():\n    try:\n        return g()\n    except OSError as e:\n        return 1\n",
            ),
            (
                "def f():\n    try:\n        return g()\n    except Exception as e:\n"
                "        raise RuntimeError from e\n",
                "def f():\n    try:\n        return g()\n    except Exception as e:\n        return None\n",
            ),
        ],
        [
            (
                f"{LOG}def f():\n    try:\n        g()\n    except OSError:\n        raise\n",
                f"{LOG}def f():\n    try:\n        g()\n    except OSError:\n        logger.error('x')\n",
            ),
            (
                "def f():\n    try:\n        g()\n    except OSError:\n        h()\n",
                "def f():\n    try:\n        g()\n    except OSError:\n        pass\n",
            ),
            (
                "def f():\n    try:\n        g()\n    except OSError:\n        raise\n",
                "def f():\n    g()\n",
            ),
        ],
    ),
    "result-dropped": (
        [
            ("def f(x):\n    x = x.to(1)\n    return x\n", "def f(x):\n    x.to(1)\n    return x\n"),
            ("def f(s):\n    s.a = s.a.clip(1)\n    return s.a\n", "def f(s):\n    s.a.clip(1)\n    return s.a\n"),
            ("def f(x):\n    y = g(x)\n    h(y)\n", "def f(x, y):\n    g(x)\n    h(y)\n"),
        ],
        [
            ("def f(x):\n    y = g(x)\n    return 1\n", "def f(x):\n    g(x)\n    return 1\n"),
            ("def f(x):\n    x = x.to(1)\n    return x\n", "def f(x):\n    x = x.to(2)\n    return x\n"),
            ("def f(x):\n    x = x.to(1)\n    return x\n", "def f(x):\n    return x.to(1)\n"),
        ],
    ),
    "placeholders-dead": (
        [
            ("def f(a):\n    return f'step {a}'\n", "def f(a):\n    return 'step {a}'\n"),
            ("def f(a, m):\n    m[f'{a}/loss'] = 1\n", "def f(a, m):\n    m['{a}/loss'] = 1\n"),
            (
                "def f(s):\n    url = f'{s.host}/x'\n    return url\n",
                "def f(s):\n    url = '{s.host}/x'\n    return url\n",
            ),
        ],
        [
            ("def f(a):\n    return f'step {a}'\n", "def f(a):\n    return 'step'\n"),
            ("def f(a):\n    return f'step {a}'\n", "def f(a):\n    return 'step {a}'.format(a=a)\n"),
            ("def f(a):\n    return f'step {a}'\n", "def f(a):\n    return f'at {a}'\n"),
        ],
    ),
    "guard-inverted": (
        [
            (
                "def f(p):\n    if p is None:\n        return 1\n",
                "def f(p):\n    if p is not None:\n        return 1\n",
            ),
            ("def f(p):\n    if not p.ok:\n        h()\n", "def f(p):\n    if p.ok:\n        h()\n"),
            ("def f(p, q):\n    if p < q:\n        h()\n", "def f(p, q):\n    if p >= q:\n        h()\n"),
        ],
        [
            (
                "def f(p):\n    if p:\n        a()\n    else:\n        b()\n",
                "def f(p):\n    if not p:\n        b()\n    else:\n        a()\n",
            ),
            ("def f(p, q):\n    if p < q:\n        h()\n", "def f(p, q):\n    if p <= q:\n        h()\n"),
            (
                "def f(p):\n    if p is None:\n        return 1\n",
                "def f(p):\n    if p is not None:\n        return 2\n",
            ),
        ],
    ),
    "arguments-swapped": (
        [
            ("def f(a, b):\n    return g(a, b)\n", "def f(a, b):\n    return g(b, a)\n"),
            ("def f(s):\n    return s.kl(s.p, s.q)\n", "def f(s):\n    return s.kl(s.q, s.p)\n"),
            ("def f(a, b):\n    return g(a, 1, b)\n", "def f(a, b):\n    return g(b, 1, a)\n"),
        ],
        [
            ("def f(a, b):\n    return g(a, b)\n", "def f(a, b):\n    return g(a, a)\n"),
            (
                "def k(x, y): ...\n\n\ndef f(a, b):\n    return k(a, b)\n",
                "def k(y, x): ...\n\n\ndef f(a, b):\n    return k(b, a)\n",
            ),
            ("def f(a, b):\n    return g(a, b)\n", "def f(a, b):\n    return h(b, a)\n"),
        ],
    ),
    "number-moved": (
        [
            ("def f(a, n):\n    while a < n:\n        a += 1\n", "def f(a, n):\n    while a <= n:\n        a += 1\n"),
            ("def f(x):\n    return x.sum(dim=-1)\n", "def f(x):\n    return x.sum(dim=0)\n"),
            ("def f(a):\n    return [b for b in a if b >= 3]\n", "def f(a):\n    return [b for b in a if b > 3]\n"),
        ],
        [
            ("def f(a, n):\n    return a < n\n", "def f(a, n):\n    return a <= n - 1\n"),
            ("def f(a, n):\n    b = 1\n    return a < n\n", "def f(a, n):\n    b = 2\n    return a <= n\n"),
            ("def f(x):\n    return x.sum(dim=-1)\n", "def f(x):\n    return x.sum(dim=-1, keepdim=True)\n"),
            ("def f(x, y):\n    return x.sum(dim=-1)\n", "def f(x, y):\n    return y.sum(dim=0)\n"),
        ],
    ),
    "log-printed": (
        [
            (f"{LOG}def f(x):\n    logger.info(x)\n", f"{LOG}def f(x):\n    print(x)\n"),
            (
                f"{LOG}def f(x):\n    if x:\n        logger.debug('no value')\n",
                f"{LOG}def f(x):\n    if x:\n        print('no value')\n",
            ),
        ],
        [
            (f"{LOG}def f(x):\n    print(x)\n", f"{LOG}def f(x):\n    logger.info(x)\n"),
            (f"{LOG}def f(x):\n    logger.info(x)\n", f"{LOG}def f(x):\n    logger.debug(x)\n"),
            ("def f(x):\n    x.show(1)\n", "def f(x):\n    print(1)\n"),
        ],
    ),
    "shift-turned": (
        [
            ("def f(ids):\n    return ids[:, 1:]\n", "def f(ids):\n    return ids[:, :-1]\n"),
            (
                "def f(x):\n    y = x.logits[..., :-1, :]\n    g(y)\n",
                "def f(x):\n    y = x.logits[..., 1:, :]\n    g(y)\n",
            ),
            (
                f"{GRAD}def f(x):\n    return torch.roll(x, -1, 1)\n",
                f"{GRAD}def f(x):\n    return torch.roll(x, 1, 1)\n",
            ),
        ],
        [
            ("def f(ids):\n    return ids[:, 1:]\n", "def f(ids):\n    return ids[:, 2:]\n"),
            (
                "def f(a, b):\n    return a[:, 1:], b[:, 1:]\n",
                "def f(a, b):\n    return a[:, :-1], b[:, :-1]\n",
            ),
            ("def f(x):\n    return g(x, -1)\n", "def f(x):\n    return g(x, 1)\n"),
        ],
    ),
}

RIGHT: dict[str, list[Version]] = {
    "await-dropped": [
        (
            "async def f(c):\n    x = await c.load(1)\n    y = await c.load(2)\n    return x, y\n",
            "async def f(c):\n    x = c.load(1)\n    y = c.load(2)\n    return await asyncio.gather(x, y)\n",
        ),
        (
            "async def f(c):\n    found = []\n    for r in c:\n        found.append(await r.get())\n    return found\n",
            "async def f(c):\n    found = []\n    for r in c:\n        found.append(r.get())\n"
            "    return await asyncio.gather(*found)\n",
        ),
        (
            "async def f(s):\n    async with await s.get(1) as r:\n        return r.text\n",
            "async def f(s):\n    async with s.get(1) as r:\n        return r.text\n",
        ),
        (
            "async def f(c):\n    x = await c.load(1)\n    return x\n",
            "async def f(c):\n    x = c.load(1)\n    c.go()\n    return await x\n",
        ),
    ],
    "floor-dropped": [
        (
            "def f(a, n):\n    return a / max(n, 1)\n",
            "def f(a, n):\n    if n == 0:\n        return 0.0\n    return a / n\n",
        ),
        ("def f(a, k):\n    return a // (k + 1)\n", "def f(a, k):\n    return a // k\n"),
        ("def f(a, n):\n    return a / max(n, 2)\n", "def f(a, n):\n    return a / 2\n"),
    ],
    "mask-dropped": [
        (
            "def f(x, mask):\n    return mean(x * mask, mask)\n",
            "def f(x, mask):\n    return mean(x, mask)\n",
        ),
    ],
    "lock-dropped": [
        (
            "class A:\n    async def f(self):\n        with self.lock:\n            self.n += 1\n",
            "class A:\n    async def f(self):\n        async with self.lock:\n            self.n += 1\n",
        ),
        (
            "def f(s):\n    with time_block('a'):\n        s.n += 1\n\n\ndef g():\n    return time_block\n",
            "def f(s):\n    s.n += 1\n\n\ndef g():\n    return time_block\n",
        ),
    ],
    "handler-silenced": [
        (
            "def f():\n    try:\n        return g()\n    except OSError as e:\n        raise Bad from e\n",
            "def f():\n    try:\n        return g()\n    except OSError as e:\n        return Failure(e)\n",
        ),
    ],
    "result-dropped": [
        (
            "def f(m, x):\n    y = m(x)\n    y = m(x + 1)\n    return y\n",
            "def f(m, x):\n    m(x)\n    y = m(x + 1)\n    return y\n",
        ),
    ],
    "placeholders-dead": [
        ("def f(log, a):\n    log.info(f'at {a}')\n", "def f(log, a):\n    log.info('at {a}', a=a)\n"),
        (
            "def f(a):\n    text = f'at {a}'\n    return text\n",
            "def f(a):\n    text = 'at {a}'\n    return text.format(a=a)\n",
        ),
    ],
    "arguments-swapped": [
        ("def f(a, b):\n    return max(a, b)\n", "def f(a, b):\n    return max(b, a)\n"),
        (
            "class P:\n    x: int\n    y: int\n\n\ndef f(a, b):\n    return P(a, b)\n",
            "class P:\n    y: int\n    x: int\n\n\ndef f(a, b):\n    return P(b, a)\n",
        ),
    ],
}
"""Changes that are right although something is gone."""


@pytest.fixture(scope="module")
def found(shared_world) -> dict[str, set[str]]:
    return shared_world.found_in_cases(
        {rule: (bad, [*good, *RIGHT.get(rule, [])]) for rule, (bad, good) in CASES.items()}
    )


def test_every_rule_is_tested_here():
    assert set(CASES) == {rule.id for rule in regressions.RULES}


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", sorted(CASES))
def test_what_was_taken_away_is_found_and_what_has_another_form_is_not(found, rule):
    assert found[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}
