"""Every rule that reads one file: code it must find, and code beside it that is right."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tooling.review.rules.catalogue import RULES

REWARD = "def score_reward(prompt, completions, prompt_ids, completion_ids, answer=None, **data):\n"
DIST = "import torch.distributed as dist\n\n"
CONTEXT = {
    "areal/__init__.py": "",
    "areal/reward/__init__.py": "",
    "areal/reward/exact.py": "def exact_reward():\n    return 1.0\n",
    "areal/functional.py": "def known(x, *, strict=False):\n    return x\n",
    "areal/configs.py": "from dataclasses import dataclass\n\n\n@dataclass\nclass Args:\n    size: int = 1\n"
    "    clear_after_load: bool = True\n",
}

READY = "import asyncio\nasync def ready():\n    return True\n\n\nasync def f(xs):\n"
LOGGER = "import logging\nlogger = logging.getLogger('a')\n"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "group-not-forwarded": (
        [f"{DIST}def total(x, group):\n    dist.all_reduce(x)\n"],
        [
            f"{DIST}def total(x, group):\n    dist.all_reduce(x, group=group)\n",
            f"{DIST}def total(x, group: str):\n    dist.all_reduce(x)\n",
            f"{DIST}def total(x, group=None):\n    if group is None:\n        dist.all_reduce(x)\n",
        ],
    ),
    "collective-under-rank": (
        [
            f"{DIST}def f():\n    if dist.get_rank() == 0:\n        dist.barrier()\n",
            f"{DIST}def f(x, group):\n    if dist.get_rank(group) == 0:\n        dist.all_reduce(x, group=group)\n",
            f"{DIST}class E:\n    def f(self, x):\n        if self.tp_rank == 0:\n"
            "            dist.broadcast(x, src=0, group=self._tp_group)\n",
            f"{DIST}class E:\n    def f(self):\n        if not self.is_main_process:\n            dist.barrier()\n",
            f"{DIST}def f(x, group):\n    if group.rank() == 0:\n        dist.all_reduce(x, group=group)\n",
        ],
        [
            f"{DIST}def f(x):\n    if dist.get_rank() == 0:\n        print(x)\n    dist.barrier()\n",
            f"{DIST}def f(x, g):\n    if dist.get_rank() == 0:\n        dist.barrier(group=g)\n",
            f"{DIST}class E:\n    def f(self, x):\n        if self.tp_rank == 0:\n"
            "            dist.broadcast(x, src=0, group=self.dp_group)\n",
            f"{DIST}def f(x, group):\n    if local_rank == 0:\n        dist.all_reduce(x, group=group)\n",
            f"{DIST}def f(x, a, b):\n    if dist.get_rank(a) == 0:\n        dist.all_reduce(x, group=b)\n",
            f"{DIST}def f(x):\n    if rank == 0:\n        dist.barrier()\n    else:\n        dist.barrier()\n",
            f"{DIST}class E:\n    def f(self, x):\n        if dist.get_rank() == 0:\n"
            "            dist.broadcast(x, src=0, group=self.update_group)\n",
        ],
    ),
    "return-before-collective": (
        [
            f"{DIST}def f(rank):\n    if rank != 0:\n        return\n    dist.barrier()\n",
            f"{DIST}def f(x, group):\n    if dist.get_rank(group) != 0:\n        return\n"
            "    dist.all_reduce(x, group=group)\n",
            f"{DIST}def f(xs, rank):\n    for x in xs:\n        if rank > 0:\n            continue\n"
            "        dist.all_reduce(x)\n",
            f"{DIST}def f(grads, norm):\n    if not grads:\n        return 0.0\n    dist.all_reduce(norm)\n",
            f"{DIST}def f(batch, norm, g):\n    if len(batch) == 0:\n        return\n"
            f"    dist.all_reduce(norm, group=g)\n",
        ],
        [
            f"{DIST}def f(groups, norm):\n    if not groups:\n        return 0.0\n    dist.all_reduce(norm)\n",
            f"{DIST}def f(grads, norm):\n    if not grads:\n        raise ValueError\n    dist.all_reduce(norm)\n",
            f"{DIST}def f(x, group):\n    if tp_rank != 0:\n        return\n    dist.all_reduce(x, group=dp_group)\n",
            f"{DIST}def f(rank):\n    dist.barrier()\n    if rank != 0:\n        return\n    print(rank)\n",
            f"{DIST}def f(rank, x):\n    if rank is None:\n        return\n    dist.all_reduce(x)\n",
        ],
    ),
    "guard-contradicts": (
        [
            "def f(path):\n    if path is not None:\n"
            "        raise ValueError('path is required')\n    return path.name\n",
            "def f(x):\n    if x is None:\n        return x.shape[0]\n    return 0\n",
            "class A:\n    def f(self):\n        if self.optimizer is not None:\n"
            "            raise RuntimeError('the optimizer is not initialized')\n",
            "def f(c):\n    if not c.use_beam_search:\n"
            "        raise NotImplementedError('Currently beam search is not supported in this backend.')\n",
            "def f(rows):\n    if rows:\n        return None\n    return rows[0]\n",
            "def f(m):\n    if hasattr(m, 'scale'):\n        return 1.0\n    return m.scale.item()\n",
            "class A:\n    def f(self):\n        if self.run is None:\n            return self.run\n"
            "        self.run = start()\n        return self.run\n",
            "def f():\n    if is_rich_available():\n        raise ImportError('This needs rich: pip install rich')\n",
            "def f():\n    if _TRITON_AVAILABLE:\n"
            "        raise RuntimeError('Triton is required, but not available')\n",
            "def f(c):\n    if isinstance(c, PeftConfig):\n"
            "        raise TypeError(f'`c` must be a `peft.PeftConfig` instance, got {type(c)}')\n",
            "def f(n, loss):\n    if n is not None:\n        return loss.mean()\n    return loss.sum() / n\n",
            "class A:\n    def f(self):\n        if self.s is not None:\n            raise RuntimeError('reset')\n"
            "        try:\n            return self.s.call()\n        except OSError:\n            return None\n",
        ],
        [
            "def f(rows):\n    if not rows:\n        return None\n    return rows[0]\n",
            "def f(m):\n    if not hasattr(m, 'scale'):\n        return 1.0\n    return m.scale.item()\n",
            "def f(m):\n    if hasattr(m, 'scale'):\n        return m\n    m.scale = make()\n"
            "    return m.scale.item()\n",
            "def f(x):\n    if x is None:\n        return x\n    y = x.strip()\n    x = y.lower()\n    return x\n",
            "class A:\n    def f(self):\n        if self.run is not None:\n            return self.run\n"
            "        self.run = start()\n        return self.run\n",
            "def f():\n    if not is_rich_available():\n"
            "        raise ImportError('This needs rich: pip install rich')\n",
            "def f():\n    if is_npu_available():\n        raise RuntimeError('8-bit optimizers do not run on NPUs')\n",
            "def f(c):\n    if isinstance(c, bool):\n        raise TypeError('`c` must be an int, got a bool')\n",
            "def f(c):\n    if isinstance(c, dict):\n        raise TypeError('`c` must not be a dict')\n",
            "def f(n, text):\n    if n is not None:\n        return text\n    return text % n\n",
            "class A:\n    def f(self):\n        if self.s is not None:\n            raise RuntimeError('reset')\n"
            "        try:\n            return self.s.call()\n        except AttributeError:\n            return None\n",
            "def f(path):\n    if path is None:\n        raise ValueError('path is required')\n    return path.name\n",
            "def f(x, y):\n    if x is None:\n        x = y\n        return x.shape[0]\n    return 0\n",
            "def f(missing_keys):\n    if missing_keys:\n        raise KeyError('missing_keys are missing')\n",
            "def f(lora, model):\n    if lora is not None:\n"
            "        raise ValueError('model is required when lora is set')\n",
        ],
    ),
    "argument-order": (
        [
            "def kl(logp, reference):\n    return logp - reference\n\n\ndef f(logp, reference):\n"
            "    return kl(reference, logp)\n",
            "class A:\n    def put(self, key, value): ...\n\n    def f(self, key, value):\n"
            "        self.put(value, key)\n",
            "def send(source, target, group):\n    return 1\n\n\ndef f(batch, group, source):\n"
            "    return send(batch.target, batch.source, group)\n",
            "def save(model, path, part=None, template_name='t'):\n    return 1\n\n\ndef f(model, path, c):\n"
            "    save(model, path, c.template_name)\n",
            "class A(B):\n    def training_step(self, model, inputs, count=None):\n"
            "        return super().training_step(model, count, inputs)\n",
        ],
        [
            "class A(B):\n    def training_step(self, model, inputs, count=None):\n"
            "        return super().training_step(model, inputs, count)\n",
            "class A(B):\n    def __init__(self, model, inputs):\n        super().__init__(inputs, model)\n",
            "class A(B):\n    def log(self, level, msg):\n        super().write(msg, level)\n",
            "def kl(logp, reference):\n    return logp - reference\n\n\ndef f(logp, reference):\n"
            "    return kl(logp, reference)\n",
            "def kl(logp, reference):\n    return logp - reference\n\n\ndef f(reference, other):\n"
            "    return kl(reference, other)\n",
            "def kl(logp, reference):\n    return logp - reference\n\n\ndef f(logp, reference):\n"
            "    return kl(reference=reference, logp=logp)\n",
        ],
    ),
    "error-not-raised": (
        [
            "from web import HTTPException\ndef f(user):\n    if user is None:\n        HTTPException(404)\n",
            "def f(x):\n    if x < 0:\n        MyError(f'{x} is negative')\n",
            "import areal.errors as errors\ndef f(x):\n    errors.ConfigError(x)\n",
        ],
        [
            "from web import HTTPException\ndef f(user):\n    if user is None:\n        raise HTTPException(404)\n",
            "def f(x, errors):\n    errors.append(MyError(x))\n",
            "def f(log):\n    log.error('x')\n",
        ],
    ),
    "misspelt-attribute": (
        [
            "from lib import Base\nclass A(Base):\n    def __init__(self):\n        self.step_count = 0\n\n"
            "    def f(self):\n        return self.stepcount\n",
            "from lib import Base\nclass A(Base):\n    def __init__(self):\n        self.generation = 0\n\n"
            "    def f(self):\n        return self.genaration\n",
            "from lib import Base\nclass A(Base):\n    def __init__(self):\n        self.max_tokens = 0\n\n"
            "    def f(self):\n        return self.maxtokens\n",
        ],
        [
            "from lib import Base\nclass A(Base):\n    def __init__(self):\n        self.layers_1 = 0\n\n"
            "    def f(self):\n        return self.layers_2\n",
            "from lib import Base\nclass A(Base):\n    def __init__(self):\n        self.batch_sizes = 0\n\n"
            "    def f(self):\n        return self.batch_size\n",
            "from lib import Base\nclass A(Base):\n    def __init__(self):\n        self.loss_total = 0\n\n"
            "    def f(self):\n        return getattr(self, 'losstotal', self.losstotal)\n",
        ],
    ),
    "coroutine-as-value": (
        [
            f"{READY}    if ready():\n        return xs\n",
            f"{READY}    found = ready()\n    return xs if found == 1 else found.rows\n",
            "class A:\n    async def rows(self):\n        return []\n\n    async def f(self):\n"
            "        return [x for x in self.rows()]\n",
            "import asyncio\nasync def f(servers):\n    results = asyncio.gather(*[s.stop() for s in servers])\n"
            "    return sum(r for r in results)\n",
            "import asyncio\nasync def f(names, work):\n    results = asyncio.gather(*work)\n"
            "    return list(zip(names, results))\n",
            "from fastapi import Request\nasync def f(request: Request):\n    data = request.json()\n"
            "    return data.get('query')\n",
        ],
        [
            "import asyncio\nasync def f(work):\n    results = asyncio.gather(*work)\n    results.cancel()\n",
            "import asyncio\nasync def f(names, work):\n    results = await asyncio.gather(*work)\n"
            "    return list(zip(names, results))\n",
            "from flask import Request\nasync def f(request: Request):\n    data = request.json()\n"
            "    return data.get('query')\n",
            "class A:\n    async def ask(self, x): ...\n    async def f(self, x, judge):\n        one = self.ask(x)\n"
            "        if x:\n            one = await one\n        return await judge(one)\n",
            "async def rows():\n    yield 1\nasync def f():\n    return [x async for x in rows()]\n",
            f"{READY}    if await ready():\n        return xs\n",
            f"{READY}    waiting = ready()\n    return await waiting\n",
            f"{READY}    return await asyncio.gather(ready(), *[ready() for _ in xs])\n",
        ],
    ),
    "group-unnamed": (
        [
            f"{DIST}def f(a, g):\n    dist.all_reduce(a, group=g.dp)\n    dist.all_reduce(a, group=g.tp)\n"
            "    dist.all_reduce(a, group=g.cp)\n\n\ndef h(a):\n    dist.all_reduce(a)\n",
            f"{DIST}def f(a, g):\n    dist.all_reduce(a, 1, g)\n    dist.broadcast(a, 0, g)\n"
            "    dist.all_gather(a, a, g)\n\n\ndef h(a):\n    dist.broadcast(a, 0)\n",
            f"{DIST}class E:\n    def f(self, a):\n        for g in self.groups:\n"
            "            dist.all_reduce(a, group=g)\n"
            "        dist.all_reduce(a, group=self.x)\n        dist.all_reduce(a, group=self.y)\n\n"
            "    def h(self, a):\n        dist.all_gather_object([], a)\n",
        ],
        [
            f"{DIST}def f(a, g):\n    dist.all_reduce(a, group=g)\n    dist.all_reduce(a)\n",
            f"{DIST}def f(a, g):\n    dist.all_reduce(a, group=g.dp)\n    dist.all_reduce(a, group=g.tp)\n"
            "    dist.all_reduce(a, group=g.cp)\n\n\ndef mean(a):\n    dist.all_reduce(a)\n"
            "    return a / dist.get_world_size()\n",
            f"{DIST}def f(a):\n    dist.all_reduce(a)\n    dist.all_reduce(a)\n    dist.all_reduce(a)\n",
        ],
    ),
    "literal-placeholders": (
        [
            "def f(method):\n    raise ValueError('unknown method {method}')\n",
            f"{LOGGER}def f(step, loss):\n    logger.info('step {{step}}: {{loss:.3f}}')\n",
            "def f(rows):\n    count = len(rows)\n    print('{count} rows')\n",
            "def f(go):\n    try:\n        go()\n    except OSError as e:\n        get_logger().warning('no: {e}')\n",
            "def f(rows, found):\n    for name in rows:\n        found.append(('{name}.weight', name))\n",
            "def f(rows, options):\n    name = rows.name\n    options['desc'] = 'reading {name}'\n",
        ],
        [
            "def f(method):\n    raise ValueError(f'unknown method {method}')\n",
            f"{LOGGER}def f(step):\n    logger.info('step {{step}}', step=step)\n",
            "def f(question):\n    return 'Answer: {question}'\n",
            "def f(method):\n    raise ValueError('write {{method}} or {name}')\n",
        ],
    ),
    "print-in-library": (
        [
            f"{LOGGER}def f(x):\n    logger.info('a')\n    logger.info('b')\n    print(x)\n",
            f"{LOGGER}class A:\n    def f(self):\n        print('b')\n        logger.info('c')\n"
            "        logger.info('d')\n",
            "from areal import log\n_logger = log.get('x')\ndef f():\n    _logger.info('d')\n    _logger.info('e')\n"
            "    print('f')\n",
        ],
        [
            f"{LOGGER}def f(x):\n    logger.info('a')\n    logger.info('b')\n    print(x, file=stream)\n",
            f"{LOGGER}def f(x):\n    logger.info('a')\n    print(x)\n    print(x)\n",
            f"{LOGGER}def print_rows(x):\n    logger.info('a')\n    print(x)\n",
            f"{LOGGER}def f(x):\n    logger.info('a')\n    logger.info('b')\n    print(x)\n"
            "if __name__ == '__main__':\n    f(1)\n",
            "def f(x):\n    print(x)\n",
        ],
    ),
    "file-left-open": (
        [
            "import json\ndef f(path):\n    rows = open(path)\n    return json.load(rows)\n",
            "def f(path):\n    out = open(path, 'w')\n    out.write('x')\n",
            "def f(path):\n    rows = open(path)\n    for row in rows:\n        print(row)\n",
        ],
        [
            "def f(path):\n    rows = open(path)\n    try:\n        return rows.read()\n"
            "    finally:\n        rows.close()\n",
            "def f(path):\n    rows = open(path)\n    return rows\n",
            "import subprocess\ndef f(path):\n    out = open(path)\n    return subprocess.Popen(['ls'], stdout=out)\n",
        ],
    ),
    "rank-local-assert": (
        [f"{DIST}def f(count):\n    assert count > 0\n    dist.all_reduce(count)\n"],
        [f"{DIST}def f(count, n):\n    assert n > 0\n    dist.all_reduce(count)\n"],
    ),
    "module-level-group": (
        [f"{DIST}GROUP = dist.new_group([0, 1])\n"],
        [f"{DIST}def make():\n    return dist.new_group([0, 1])\n"],
    ),
    "group-without-timeout": (
        [f"{DIST}def f(t):\n    return dist.new_group([0], timeout=t), dist.new_group([1])\n"],
        [f"{DIST}def f():\n    return dist.new_group([0]), dist.new_group([1])\n"],
    ),
    "update-without-pause": (
        [f"{DIST}class E:\n    def _update_weights_from_distributed(self, meta):\n        dist.barrier()\n"],
        [
            f"{DIST}class E:\n    def _update_weights_from_distributed(self, meta):\n"
            "        self.rollout.pause_generation()\n        dist.barrier()\n"
        ],
    ),
    "unguarded-mask-division": (
        [
            "def f(x, loss_mask):\n    return (x * loss_mask).sum() / loss_mask.count_nonzero()\n",
            "def f(x, mask=None):\n    if mask is not None:\n"
            "        return (x * mask).sum() / mask.sum()\n    return x.mean()\n",
        ],
        [
            "def f(x, loss_mask):\n    return (x * loss_mask).sum() / loss_mask.sum().clamp(min=1)\n",
            "def f(x, mask):\n    if not mask.any():\n        return 0\n    return (x * mask).sum() / mask.sum()\n",
            "def f(x, counts):\n    return x.sum() / counts.sum()\n",
        ],
    ),
    "unmasked-numerator": (
        ["def f(x, mask):\n    return x.sum() / mask.sum().clamp(min=1)\n"],
        ["def f(x, mask):\n    x = x * mask\n    return x.sum() / mask.sum().clamp(min=1)\n"],
    ),
    "dropped-result": (
        [
            "import torch\ndef f(x):\n    x.clamp(max=2.0)\n    return x\n",
            "def f(text):\n    text.strip()\n",
            "import torch\ndef f(x: torch.Tensor, device):\n    x.to(device)\n    return x\n",
            "import torch\ndef f(model):\n    for param in model.parameters():\n"
            "        param.data.to(torch.bfloat16)\n",
            "import torch\nimport torch.distributed as dist\ndef f(state, device):\n    state.to(device)\n"
            "    dist.broadcast(state, 0)\n",
            "import torch\ndef f(ids, labels, device):\n    labels.to(device)\n    return labels.shape[0]\n",
        ],
        [
            "import torch\ndef f(x):\n    x.clamp_(max=2.0)\n    return x.clamp(0)\n",
            "import torch\ndef f(model, device):\n    model.to(device)\n    return model.forward\n",
            "import torch\ndef f(tokenizer, text, device):\n    rows = tokenizer(text)\n    rows.to(device)\n"
            "    return rows['input_ids'].shape\n",
            "import torch\nimport torch.distributed as dist\ndef f(model, device):\n    model.to(device)\n"
            "    dist.broadcast_object_list([model], 0)\n",
        ],
    ),
    "host-sync-in-loop": (
        ["import torch\ndef train_batch(xs):\n    total = 0\n    for x in xs:\n        total += x.item()\n"],
        ["import torch\ndef train_batch(xs):\n    return torch.stack(xs).sum().item()\n"],
    ),
    "histogram-end": (
        ["import torch\ndef f(x, n):\n    return torch.histc(x, bins=n, min=0, max=n - 1)\n"],
        ["import torch\ndef f(x, n):\n    return torch.histc(x, bins=n, min=0, max=n)\n"],
    ),
    "file-in-episode": (
        ["class W:\n    async def arun_episode(self, e, d):\n        return open('x').read()\n"],
        ["async def start():\n    return open('x').read()\n"],
    ),
    "never-awaited": (
        [
            "async def save():\n    pass\nasync def main():\n    save()\n",
            "class A:\n    async def save(self):\n        pass\n    def run(self):\n        self.save()\n",
            "import asyncio\nclass A:\n    def __init__(self):\n        self.lock = asyncio.Lock()\n"
            "    async def f(self):\n        self.lock.acquire()\n",
        ],
        [
            "import threading\nclass A:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
            "    async def f(self):\n        self.lock.acquire()\n",
            "import asyncio\nclass A:\n    def __init__(self):\n        self.lock = asyncio.Lock()\n"
            "    async def f(self):\n        await self.lock.acquire()\n        self.lock.release()\n",
            "async def save():\n    pass\nasync def main():\n    await save()\n",
            "def task(f):\n    return f\n@task\nasync def save():\n    pass\ndef main():\n    save()\n",
        ],
    ),
    "dropped-task": (
        ["import asyncio\nasync def f(g):\n    asyncio.create_task(g())\n"],
        ["import asyncio\nasync def f(g, kept):\n    kept.add(asyncio.create_task(g()))\n"],
    ),
    "unbounded-wait": (
        [
            "class A:\n    def destroy(self):\n        self.thread.join()\n",
            "class A:\n    def close(self):\n        self.executor.shutdown(wait=True)\n",
            "class A:\n    def close(self):\n        self.executor.shutdown()\n",
            "def stop(procs):\n    for p in procs:\n        p.wait()\n",
        ],
        [
            "class A:\n    def destroy(self):\n        self.thread.join(timeout=5)\n",
            "class A:\n    def run(self):\n        self.thread.join()\n",
            "class A:\n    def close(self, parts):\n        self.path.join(parts)\n",
            "class A:\n    def close(self):\n        self.executor.shutdown(wait=False)\n"
            "        self.engine.shutdown()\n",
            "def stop(p, event):\n    event.wait()\n    p.wait(timeout=5)\n",
        ],
    ),
    "endless-retry": (
        ["def f(g):\n    while 1:\n        try:\n            return g()\n        except Exception:\n            g()"],
        [
            "def f(g):\n    while True:\n        try:\n            return g()\n        except Exception:\n"
            "            raise ValueError from None\n"
        ],
    ),
    "unresolved-import": (
        ["from areal.functional import gone\n", "import areal.nothing\n", "from areal.nothing import x\n"],
        [
            "from areal.functional import known\n",
            "try:\n    from areal.functional import gone\nexcept ImportError:\n    gone = None\n",
            "from areal import functional\nimport elsewhere.thing\n",
        ],
    ),
    "signature-mismatch": (
        [
            "from areal.functional import known\nknown(1, shape=2)\n",
            "from areal.functional import known\nknown(1, 2)\n",
            "from areal.configs import Args\nArgs(sise=2)\n",
        ],
        [
            "from areal.functional import known\nknown(1, strict=True)\n",
            "from areal.functional import known\ndef f(known):\n    known(1, 2, 3)\n",
            "def f():\n    from areal.functional import known\n    known(1)\ndef g():\n"
            "    from elsewhere import known\n    known(1, 2, 3)\n"
            "def h():\n    from areal.functional import known\n    known(1)\n",
            "from areal.configs import Args\nArgs(2)\n",
        ],
    ),
    "unknown-attribute": (
        [
            "from areal.configs import Args\ndef f(args: Args):\n    return args.sise\n",
            "from areal.configs import Args\ndef f(args: Args):\n    args.clear = False\n",
        ],
        [
            "from areal.configs import Args\ndef f(args: Args):\n    return args.size\n",
            "from areal.configs import Args\nfrom other import made\n"
            "def f(args: Args):\n    args = made(args)\n    return args.sise\n",
        ],
    ),
    "field-order": (
        ["from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n    y: int\n"],
        [
            "from dataclasses import dataclass\n@dataclass(kw_only=True)\nclass A:\n    x: int = 1\n    y: int\n",
            "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    x: int = field()\n    y: int\n",
        ],
    ),
    "mutable-default": (
        ["def f(x, seen=[]):\n    seen.append(x)\n", "def f(x, *, seen={}):\n    seen[x] = 1\n"],
        [
            "def f(x, seen=[]):\n    return x in seen\n",
            "def f(x, seen=[]):\n    seen = list(seen)\n    seen.append(x)\n",
        ],
    ),
    "assert-in-config": (
        ["class RunConfig:\n    def __post_init__(self):\n        assert self.n > 0\n"],
        ["class Ledger:\n    def __post_init__(self):\n        assert self.n > 0\n"],
    ),
    "literal-in-config": (
        ["import omegaconf\n@dataclass\nclass TrainConfig:\n    mode: Literal['a'] = 'a'\n"],
        [
            "@dataclass\nclass TrainConfig:\n    mode: Literal['a'] = 'a'\n",
            "import omegaconf\n@dataclass\nclass _Result:\n    mode: Literal['a'] = 'a'\n",
            "from omegaconf import OmegaConf\nROWS = OmegaConf.load('a')\n\n\n@dataclass\nclass RunConfig:\n"
            "    mode: Literal['a'] = 'a'\n",
        ],
    ),
    "unsafe-deserialisation": (
        ["import cloudpickle\ndef f(data):\n    return cloudpickle.loads(data)\n"],
        [
            "import pickle\ndef f(x):\n    return pickle.loads(pickle.dumps(x))\n",
            "import marshal\ndef f(x):\n    return marshal.loads(x)\n",
        ],
    ),
    "unsafe-torch-load": (
        ["import torch\ndef f(p):\n    return torch.load(p, weights_only=False)\n"],
        ["import torch\ndef f(p):\n    return torch.load(p, weights_only=True)\n"],
    ),
    "default-torch-load": (
        [
            "import torch\ndef f(p):\n    return torch.load(p, map_location='cpu')\n",
            "import torch\nx = torch.load('a')\n",
        ],
        [
            "import torch\ndef f(p):\n    return torch.load(p, weights_only=True)\n",
            "import torch\ndef f(p, **k):\n    return torch.load(p, **k)\n",
            "import pkg\ndef f(p):\n    return pkg.load(p)\n",
        ],
    ),
    "unsafe-yaml": (
        ["import yaml\ndef f(t):\n    return yaml.load(t, Loader=yaml.Loader)\n"],
        ["import yaml\ndef f(t):\n    return yaml.load(t, Loader=yaml.SafeLoader), yaml.safe_load(t)\n"],
    ),
    "shell-from-values": (
        [
            "import os\ndef f(p):\n    os.system(f'rm {p}')\n",
            "import subprocess\ndef f(p):\n    subprocess.run('rm ' + p, shell=True)\n",
            "import subprocess\ndef f(p):\n    c = f'rm {p}'\n    subprocess.run(c, shell=True)\n",
        ],
        [
            "import subprocess\ndef f(p):\n    subprocess.run(['rm', p])\n    subprocess.run('ls', shell=True)\n",
            "import os, shlex\ndef f(p):\n    os.system(f'rm {shlex.quote(p)}')\n",
        ],
    ),
    "evaluated-text": (
        ["def f(t):\n    return eval(t)\n"],
        [
            "def f(model):\n    return model.eval()\n",
            "import inspect\ndef patch(g):\n    exec(inspect.getsource(g).replace('1', '2'))\n",
            "def run(program):\n    reliability_guard()\n    exec(program)\n",
        ],
    ),
    "open-address": (
        [
            "import uvicorn\ndef f(app):\n    uvicorn.run(app, host='0.0.0.0')\n",
            "def f(port):\n    return ['python', '-m', 'server', '--host', '0.0.0.0', '--port', port]\n",
        ],
        [
            "import uvicorn\ndef f(app, host):\n    uvicorn.run(app, host=host)\n",
            "def f(port):\n    return ['python', '-m', 'server', '--host', '127.0.0.1', '--port', port]\n",
        ],
    ),
    "wildcard-import": (["from os.path import *\n"], ["from os.path import join\n"]),
    "swallowed-error": (
        ["def f(g):\n    try:\n        g()\n    except Exception:\n        pass\n"],
        [
            "def f(g):\n    try:\n        g()\n    except KeyError:\n        pass\n",
            "def _stop_all(g):\n    try:\n        g()\n    except Exception:\n        pass\n",
        ],
    ),
    "torn-state": (
        ["def save_state(p, s):\n    with open(p, 'w') as f:\n        f.write(s)\n"],
        [
            "import os\ndef save_state(p, s):\n    with open(p + '~', 'w') as f:\n        f.write(s)\n"
            "    os.replace(p + '~', p)\n"
        ],
    ),
    "silent-getattr": (
        ["class A:\n    def __getattr__(self, name):\n        return None\n"],
        ["class A:\n    def __getattr__(self, name):\n        raise AttributeError(name)\n"],
    ),
    "reward-swallows": (
        [f"{REWARD}    try:\n        return float(g(completions))\n    except Exception:\n        return 0.0\n"],
        [f"{REWARD}    try:\n        return float(completions)\n    except ValueError:\n        return 0.0\n"],
    ),
    "reward-unguarded": (
        [
            f"{REWARD}    if completions.strip() == answer.strip():\n        return 1.0\n    return 0.0\n",
            f"def part(text):\n    return float(text)\n\n\n{REWARD}    score = part(completions)\n    return score\n",
        ],
        [
            f"{REWARD}    return float(completions == answer)\n",
            "def part(text):\n    try:\n        return float(text)\n    except ValueError:\n        return 0.0\n\n\n"
            f"{REWARD}    score = part(completions)\n    return score\n",
        ],
    ),
    "reward-no-number": (
        [f"{REWARD}    return None\n", f"{REWARD}    return 1.0, 'why'\n"],
        [f"{REWARD}    return float(completions == answer)\n", "def other(prompt):\n    return None\n"],
    ),
}


RIGHT: dict[str, list[str]] = {
    "argument-order": [
        "def kl(new, old): ...\n\n\ndef f(new, old):\n    return kl(new, old) + kl(old, new)\n",
        "def turn(x, scatter, gather): ...\n\n\ndef backward(ctx, x):\n    return turn(x, ctx.gather, ctx.scatter)\n",
        "def save(path, model, suffix=None): ...\n\n\ndef f(path, model):\n    save(path, model, path)\n",
        "def move(item, *rest, **kwargs): ...\n\n\ndef f(kwargs, item):\n    move(kwargs, item)\n",
    ],
    "coroutine-as-value": [
        "class A:\n    async def load(self): ...\n    async def f(self, x):\n        return await (x or self.load())\n"
    ],
    "error-not-raised": [
        "class A:\n    def test(self):\n        with self.assertRaises(TypeError):\n            MyError(1)\n"
    ],
    "file-left-open": ["LOG = None\n\n\ndef f(p):\n    global LOG\n    LOG = open(p)\n    LOG.read()\n"],
    "guard-contradicts": [
        "POOL = None\n\n\ndef f():\n    if POOL is None:\n        start()\n        POOL.submit(1)\n",
        'def f(value, required):\n    if required:\n        raise ValueError("this field is required")\n',
        'def f(lora):\n    if lora is not None:\n        raise ValueError("lora is not available here")\n',
        "def f(c):\n    if c.use_beam_search:\n        raise NotImplementedError('beam search is not supported')\n",
        "def f(name, step):\n    if name is None:\n        if step is not None:\n"
        "            raise ValueError(f'unable to load a checkpoint for step {step}')\n",
        "def f(c):\n    if not c.use_nccl:\n        raise ValueError('gloo is not supported')\n",
    ],
    "literal-placeholders": ["def f(name):\n    raise ValueError('the template must contain {name}')\n"],
    "return-before-collective": [
        f"{DIST}def f(all_grads, x):\n    if not all_grads:\n        return\n    dist.all_reduce(x)\n",
        f"{DIST}def f(tensor_names, x):\n    if len(tensor_names) == 0:\n        return\n    dist.all_reduce(x)\n",
    ],
    "reward-swallows": [
        "def load_scores(path):\n    try:\n        return read(path)\n    except Exception:\n        return 0\n",
        "def score_port(host):\n    try:\n        return ask(host)\n    except Exception:\n        return 0\n",
    ],
    "misspelt-attribute": [
        "from lib import Base\n\n\nclass A(Base):\n    def __init__(self):\n        self.module = 1\n\n"
        "    def f(self):\n        return self._module\n"
    ],
}


@pytest.fixture(scope="module")
def found(shared_world) -> dict[str, set[str]]:
    shared_world.commit(dict(CONTEXT))
    return shared_world.found_in_cases(
        {rule: (bad, [*good, *RIGHT.get(rule, [])]) for rule, (bad, good) in CASES.items()}
    )


@pytest.mark.sample(16)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(found, rule):
    assert found[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}


def test_a_package_that_the_policy_freezes_is_left_alone(world):
    world.commit({"pyproject.toml": '[tool.areal.review]\nfrozen = ["old"]\n'})
    world.commit(
        {"new/a.py": "from old.base import network\n", "old/b.py": "import old.base\n", "c.py": "import older\n"}
    )
    assert world.found() == [("frozen-import", "new/a.py", 1)]


def test_registry_entries_must_lead_somewhere(world):
    world.commit(dict(CONTEXT))
    entry = 'REWARDS = {{"exact": "areal.reward.exact:{}"}}\n'
    world.commit({"areal/reward/registry.py": entry.format("gone_reward")})
    assert ("registry-target", "areal/reward/registry.py", 1) in world.found()
    world.commit({"areal/reward/registry.py": entry.format("exact_reward")})
    assert world.found() == []


def test_a_test_must_be_able_to_fail(world):
    fixture = "@pytest.fixture\ndef test_c():\n    return 1\n"
    body = (
        "import pytest\nfrom m import load\n\n\ndef test_a():\n    load()\n\n\ndef test_b():\n    assert load()\n\n\n"
    )
    accepted = "def test_an_empty_text_is_accepted():\n    load()\n\n\n"
    world.commit({"tests/test_a.py": body + accepted + fixture})
    assert world.found() == [("toothless-test", "tests/test_a.py", 5)]


def test_there_are_at_least_thirty_rules_and_each_says_what_why_and_how():
    assert len(RULES) >= 30
    silent = [name for name, rule in RULES.items() if not all(asdict(rule.text).values())]
    assert silent == []


def test_what_only_harms_users_is_allowed_in_tests(world):
    text = CASES["unsafe-deserialisation"][0][0]
    world.commit({"tests/helper.py": text, "pkg/test_it.py": text, "latest.py": text})
    assert [path for _, path, _ in world.found()] == ["latest.py"]
