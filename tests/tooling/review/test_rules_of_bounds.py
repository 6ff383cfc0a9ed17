"""Rules about bounds, dimensions and waits: each finds its cases and nothing beside them."""

from __future__ import annotations

import pytest

QUEUE = "import queue\n\n\ndef f(rows, check, stop):\n"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "timeout-never-comes": (
        [
            f"{QUEUE}    try:\n        return rows.get()\n    except queue.Empty:\n        check()\n",
            "def f(process):\n    process.join()\n    if process.is_alive():\n        process.kill()\n",
            "import ray\n\n\ndef f(refs):\n    done, left = ray.wait(refs, num_returns=len(refs))\n"
            "    return len(left)\n",
            "import asyncio\n\n\nasync def f(tasks):\n    while tasks:\n"
            "        done, tasks = await asyncio.wait(tasks, return_when='FIRST_COMPLETED')\n"
            "        if not done:\n            continue\n",
        ],
        [
            f"{QUEUE}    try:\n        return rows.get(timeout=1)\n    except queue.Empty:\n        check()\n",
            "def f(process):\n    process.join(10)\n    if process.is_alive():\n        process.kill()\n",
            "import ray\n\n\ndef f(refs):\n    done, left = ray.wait(refs, num_returns=1)\n    return len(left)\n",
            "import asyncio\n\n\nasync def f(tasks):\n    while tasks:\n"
            "        done, tasks = await asyncio.wait(tasks, timeout=1)\n        if not done:\n            continue\n",
        ],
    ),
    "limit-unused": (
        [
            "def stop(process, timeout=5.0):\n    process.terminate()\n    process.wait()\n",
            "import requests\n\n\nclass C:\n    def start(self, timeout: int = 9):\n"
            "        requests.post(self.url, json={})\n",
            "import asyncio\n\n\nasync def f(tasks, *, timeout_s):\n    await asyncio.wait(tasks)\n",
            "import asyncio\n\n\ndef f(go):\n    return asyncio.run(asyncio.wait_for(go()))\n",
        ],
        [
            "def stop(process, timeout=5.0):\n    process.terminate()\n    process.wait(timeout)\n",
            "def stop(self, timeout=None):\n    self.stopped = True\n",
            "import time\n\n\ndef f(task, timeout):\n    end = time.time() + timeout\n    while time.time() < end:\n"
            "        if task.done():\n            return task.result()\n",
        ],
    ),
    "deaf-loop": (
        [
            "def f(self):\n    while not self.stopped.is_set():\n        self.write(self.rows.get())\n",
            "import time\n\n\ndef f(rows, end, use):\n    while time.time() < end:\n        row = rows.get()\n"
            "        use(row)\n",
            "def f(self):\n    while not self._stop:\n        for each in self.pending.get():\n"
            "            each.run()\n",
        ],
        [
            "def f(self):\n    while not self.stopped.is_set():\n        self.write(self.rows.get(timeout=1))\n",
            "def f(self):\n    while not self.stopped.is_set():\n        row = self.rows.get()\n"
            "        if row is None:\n            break\n        self.write(row)\n",
            "def f(self, n):\n    while n > 0:\n        self.write(self.rows.get())\n        n -= 1\n",
        ],
    ),
    "cut-at-wrong-end": (
        [
            "def f(output, labels):\n    shift_logits = output.logits[..., 1:, :]\n"
            "    return shift_logits, labels[:, 1:]\n",
            "def f(batch):\n    labels = batch['input_ids'][:, :-1].clone()\n    return labels\n",
            "import torch\n\n\ndef f(data):\n    return torch.roll(data['input_ids'], shifts=1, dims=-1)\n",
            "def f(x, input_ids, loss_mask):\n    targets = input_ids[:, 1:]\n"
            "    return x[targets] * loss_mask[:, :-1]\n",
        ],
        [
            "def f(output, labels):\n    return output.logits[:, :-1], labels[:, 1:], output.logits[:, :, 1:]\n",
            "def f(batch):\n    inputs = batch['input_ids'][:, :-1]\n    return inputs, batch['input_ids'][:, 1:]\n",
            "import torch\n\n\ndef f(data, heads):\n"
            "    return torch.roll(data['input_ids'], -1, 1), heads.roll(1, 0)\n",
            "def f(input_ids, loss_mask):\n    return input_ids[:, 1:] * loss_mask[:, 1:]\n",
        ],
    ),
    "over-rows": (
        [
            "import torch.nn.functional as F\n\n\ndef f(logits):\n    return F.log_softmax(logits / 2.0, dim=0)\n",
            "def f(self, x):\n    return self.head(x).logits, self.logits.argmax(dim=0)\n",
            "import torch\n\n\ndef f(logits):\n    return torch.softmax(logits, 0), logits.sum(0)\n",
            "import torch.nn.functional as F\n\n\ndef f(embeddings):\n    return F.normalize(embeddings, p=2, dim=0)\n",
        ],
        [
            "import torch.nn.functional as F\n\n\ndef f(logits):\n    return F.log_softmax(logits, dim=-1)\n",
            "def f(output):\n    logits = output.logits[0]\n    return logits.softmax(dim=0)\n",
            "def f(logits):\n    return logits.mean(dim=0)\n",
        ],
    ),
    "unlike-twin": (
        [
            "from torch import cat\n\n\ndef f(p_ids, a_ids, p_mask, a_mask):\n    ids = cat([p_ids, a_ids], dim=1)\n"
            "    mask = cat([p_mask, a_mask], dim=0)\n    return ids, mask\n",
            "import torch\n\n\ndef f(rows):\n    a = torch.cat((rows['q_ids'], rows['r_ids']), dim=0)\n"
            "    return a, torch.cat((rows['q_mask'], rows['r_mask']), dim=1)\n",
            "def f(x, m):\n    good_logits, bad_logits = x.chunk(2, dim=0)\n"
            "    good_mask, bad_mask = m.chunk(2, dim=1)\n"
            "    return good_logits[good_mask], bad_logits[bad_mask]\n",
            "from torch import cat\n\n\ndef f(q_rope, q_plain, k_rope, k_plain):\n"
            "    return cat([q_plain, q_rope], dim=0), cat([k_plain, k_rope], dim=-1)\n",
            "def f(logits, mask, labels, n):\n    one = logits.detach().chunk(n, dim=0)\n"
            "    two = mask.chunk(n, dim=0)\n    three = labels.chunk(n, dim=1)\n    return one, two, three\n",
        ],
        [
            "from torch import cat\n\n\ndef f(p_ids, a_ids, p_mask, a_mask):\n    ids = cat([p_ids, a_ids], dim=1)\n"
            "    mask = cat([p_mask, a_mask], dim=1)\n    return ids, mask\n",
            "from torch import cat\n\n\ndef f(p_ids, a_ids, p_mask):\n    ids = cat([p_ids, a_ids], dim=1)\n"
            "    return ids, cat([p_mask, ids > 0], dim=0)\n",
            "def f(x, m):\n    good_logits, bad_logits = x.chunk(2, dim=0)\n"
            "    left_mask, right_mask = m.chunk(2, dim=1)\n"
            "    return good_logits, bad_logits, left_mask, right_mask\n",
            "from torch import cat\n\n\ndef f(q_rope, q_plain, k_rope, k_full):\n"
            "    return cat([q_plain, q_rope], dim=0), cat([k_full, k_rope], dim=-1)\n",
            "def f(logits, mask, labels, n):\n    one = logits.chunk(n, dim=0)\n    two = mask.chunk(n, dim=0)\n"
            "    three = labels.chunk(n - 1, dim=1)\n    return one, two, three\n",
        ],
    ),
    "index-elsewhere": (
        [
            "def f(x, labels):\n    return x.gather(dim=0, index=labels.unsqueeze(-1)).squeeze(-1)\n",
            "import torch\n\n\ndef f(x, i):\n    return torch.gather(x, dim=-1, index=i.unsqueeze(0))\n",
            "def f(x, mask):\n    return (x * mask).sum(dim=0) / mask.sum(dim=-1).clamp(min=1)\n",
            "def f(x, loss_mask):\n    counts = loss_mask.sum(dim=-1)\n"
            "    return (x * loss_mask).sum(dim=0) / (counts + 1e-8)\n",
        ],
        [
            "def f(x, labels):\n    return x.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)\n",
            "def f(x, i):\n    return x.gather(dim=1, index=i.unsqueeze(-1))\n",
            "def f(x, mask):\n    return (x * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)\n",
            "def f(x, loss_mask, others):\n    counts = loss_mask.sum(dim=-1)\n"
            "    return (x * loss_mask).sum(dim=0) / others, counts\n",
            "def f(is_end, rows):\n    return is_end.int().argmax(dim=0)[rows.any(dim=1)]\n",
        ],
    ),
    "bound-contradicts": (
        [
            "def f(n):\n    if n <= 2:\n        raise ValueError(f'needs at least 2 answers, got {n}')\n",
            "def f(size):\n    if size < 0:\n        raise ValueError('size must be positive')\n",
            "def f(n, most):\n    if n >= most:\n        raise ValueError(f'n must not exceed {most}')\n",
            "def f(n):\n    assert n >= 0, f'n must be > 0, got {n}'\n",
            "def f(n, max_size):\n    if n >= max_size:\n        raise ValueError(f'n exceeds {max_size}')\n",
        ],
        [
            "def f(n):\n    if n < 2:\n        raise ValueError(f'needs at least 2 answers, got {n}')\n",
            "def f(size):\n    if size < 0:\n        raise ValueError('size must be non-negative')\n",
            "def f(n, most):\n    if n >= most:\n        raise ValueError(f'n must be below {most}')\n",
            "def f(rows):\n    assert len(rows) > 0, 'needs at least one row'\n",
            "def f(i, max_size):\n    if i >= max_size:\n        raise ValueError(f'i exceeds {max_size}')\n",
            "def f(kept):\n    if kept <= 0:\n        raise ValueError('`kept` must be greater than or equal to 1.')\n",
            "def f(got, base):\n    assert got['a'] >= base['a'], f\"{got['a']} < {base['a']}\"\n",
            'def cut(version, limit):\n    """Cut where version < limit, and keep where version <= limit."""\n'
            "    return version <= limit\n",
        ],
    ),
    "always-holds": (
        [
            "def f(errors):\n    if len(errors) >= 0:\n        raise RuntimeError(errors)\n",
            "def f(hits, tries):\n    return hits / tries if tries >= 0 else 0.0\n",
            "def f(x, mask, done):\n    return (mask.sum(dim=-1) >= 0) & done, x.dim() >= 0\n",
            "def f(x, group):\n    if group.world_size >= 1:\n        x = group.sum(x)\n    return x\n",
        ],
        [
            "def f(errors):\n    if len(errors) > 0:\n        raise RuntimeError(errors)\n",
            "def f(x):\n    return x > float('-inf')\n",
            "def f(hits, tries):\n    return hits / tries if hits >= 0 else 0.0\n",
            "def f(world_size):\n    assert world_size >= 1\n    return 1 <= world_size\n",
            "def f(c):\n    return c.pp_size if c.pp_size >= 1 else 1, c.num_frozen >= 0 and c.num_frozen\n",
            "def f(gains, warn):\n    a_count = int(gains.sum())\n    if a_count >= 0:\n        warn(a_count)\n",
        ],
    ),
    "index-at-length": (
        [
            "def f(x, use):\n    i = 0\n    while i <= len(x):\n        use(x[i])\n        i += 1\n",
            "def f(size):\n    return size[0] <= 512 and size[1] < 512\n",
            "def f(last_width, last_height, least):\n    return last_height < least or last_width <= least\n",
        ],
        [
            "def f(x, use):\n    i = 0\n    while i < len(x):\n        use(x[i])\n        i += 1\n",
            "def f(rows, n):\n    return [i for i in rows if i < 0 or i >= n]\n",
            "def f(args):\n    return args[0] if len(args) >= 1 else None\n",
            "def f(width, depth, least):\n    return width < least or depth <= least\n",
            "def f(size, x, i):\n    return (size[0] <= 512 and size[1] < 256) or (i <= len(x) and x[:i])\n",
        ],
    ),
    "last-left-out": (
        [
            "def f(workers):\n    for i in range(len(workers) - 1):\n        workers[i].start()\n",
            "def f(self, board):\n    for r in range(self.num_rows - 1):\n        for c in range(self.num_rows):\n"
            "            board[r][c] = 0\n",
            "def f(rows, num_rows):\n    return rows.select(range(num_rows - 1))\n",
            "def f(x, n, use):\n    for t in range(n - 1):\n        use(x[t] if t < n - 1 else 0)\n",
            "def f(tasks, use):\n    for i in range(len(tasks) - 1):\n        if tasks[i]:\n"
            "            use(tasks[i])\n",
            "def f(config, make):\n    return [make(i) for i in range(config.num_hidden_layers - 1)]\n",
            "def f(data, out, ends):\n    for i in range(len(data) - 1):\n        out[i] = data[i]\n"
            "    return out, ends.shape[-1]\n",
        ],
        [
            "def f(workers):\n    for i in range(len(workers)):\n        workers[i].start()\n",
            "def f(x, use):\n    for i in range(len(x) - 1):\n        use(x[i], x[i + 1])\n",
            "def f(x, use):\n    for i in range(len(x) - 1):\n        use(x[i])\n    return x[-1]\n",
            "def f(units, end):\n    # all but the last one\n    for i in range(len(units) - 1):\n"
            "        units[i] += end\n",
            "def f(num_layers, make):\n    return [make() for _ in range(num_layers - 1)]\n",
            "def f(sigmas, num_sigmas, step, tqdm):\n    steps = tqdm(range(num_sigmas - 1))\n    for i in steps:\n"
            "        step(sigmas[i], sigmas[i + 1])\n",
            "def f(key, known):\n    return [i for i in range(len(key) - 1) if key[:i] in known]\n",
            "def f(rows):\n    return [\n        f'length_{i}' for i in range(len(rows) - 1)\n"
            "    ]  # the last column is the index\n",
            "def f(rows, use):\n    it = iter(rows)\n    for i in range(len(rows) - 1):\n        use(i, next(it))\n",
        ],
    ),
    "odd-twin": (
        [
            "def f(chosen_rewards, rejected_rewards, chosen_ends, rejected_ends):\n"
            "    chosen = chosen_rewards.gather(dim=-1, index=chosen_ends)\n"
            "    rejected = rejected_rewards.gather(dim=0, index=rejected_ends)\n    return chosen, rejected\n",
            "def f(a_scores, b_scores, limit):\n    a_wrong = a_scores.all() > limit\n"
            "    b_wrong = b_scores.all() >= limit\n    return a_wrong, b_wrong\n",
            "def f(chosen_ids, rejected_ids, chosen_pad, rejected_pad, cat):\n"
            "    chosen_all = cat([chosen_ids, chosen_pad], dim=1)\n"
            "    rejected_all = cat([rejected_ids, rejected_pad], dim=0)\n    return chosen_all, rejected_all\n",
            "def f(q_list, k_list, v_list, cat):\n    q = cat(q_list, dim=1)\n    k = cat(k_list, dim=0)\n"
            "    v = cat(v_list, dim=0)\n    return q, k, v\n",
        ],
        [
            "def f(new, old, strict):\n    if strict:\n        taken = new > old\n    else:\n"
            "        taken = new >= old\n    return taken\n",
            "def f(chosen_rewards, rejected_rewards, chosen_ends, rejected_ends):\n"
            "    a = chosen_rewards.gather(dim=-1, index=chosen_ends)\n"
            "    b = rejected_rewards.gather(dim=-1, index=rejected_ends)\n    return a, b\n",
            "def f(first_scores, last_scores, limit):\n    first_wrong = first_scores.all() > limit\n"
            "    last_wrong = last_scores.all() >= limit\n    return first_wrong, last_wrong\n",
            "def f(x, axis):\n    if axis == 'row':\n        out = x.all(axis=1)\n    else:\n"
            "        out = x.all(axis=0)\n"
            "    return out\n",
            "def f(q_list, k_list, cat):\n    q = cat(q_list, dim=1)\n    k = cat(k_list, dim=0)\n    return q, k\n",
            "def f(x, y):\n    rows = x.sum(dim=0)\n    total = y.sum(dim=1)\n    return rows, total\n",
        ],
    ),
    "group-of-axis-unnamed": (
        [
            "import torch\nimport torch.distributed as dist\n\n\ndef f(x, tp_size):\n"
            "    parts = [torch.empty_like(x) for _ in range(tp_size)]\n    dist.all_gather(parts, x)\n"
            "    return parts\n",
            "import torch.distributed as dist\n\n\ndef f(self, x):\n    if self.cp_size > 1:\n"
            "        dist.all_reduce(x)\n    return x\n",
            "import torch.distributed as dist\n\n\ndef f(mesh, x):\n    tp_group = mesh.get_group('tp')\n"
            "    dist.broadcast(x, 0)\n    return x\n",
        ],
        [
            "import torch\nimport torch.distributed as dist\n\n\ndef f(x, tp_size, tp_group):\n"
            "    parts = [torch.empty_like(x) for _ in range(tp_size)]\n"
            "    dist.all_gather(parts, x, group=tp_group)\n    return parts\n",
            "import torch.distributed as dist\n\n\ndef f(self, x):\n    if self.cp_size > 1:\n"
            "        dist.barrier()\n    return x\n",
            "import torch\nimport torch.distributed as dist\n\n\ndef f(x, world_size):\n"
            "    parts = [torch.empty_like(x) for _ in range(world_size)]\n    dist.all_gather(parts, x)\n"
            "    return parts\n",
        ],
    ),
    "reward-swallows": (
        ["def code_reward(run, a):\n    try:\n        return run(a)\n    except TimeoutError:\n        return 0.0\n"],
        ["def code_reward(read, a):\n    try:\n        return read(a)\n    except ValueError:\n        return 0.0\n"],
    ),
    "evaluated-with-gradients": (
        [
            "import torch\n\n\nclass A:\n    def evaluate(self, batch):\n        return self.model(**batch).logits\n",
            "import torch\n\n\nclass Sgd:\n    def step(self, closure):\n        with torch.enable_grad():\n"
            "            loss = closure()\n        for p in self.all():\n            p.add_(p.grad, alpha=-self.lr)\n"
            "        return loss\n",
        ],
        [
            "import torch\n\n\nclass A:\n    @torch.no_grad()\n    def evaluate(self, batch):\n"
            "        return self.model(**batch).logits\n",
            "import torch\n\n\ndef load(model, saved):\n    for name, param in model.named_parameters():\n"
            "        param.data.copy_(saved[name])\n",
            "import torch\n\n\ndef evaluate(model, batch):\n    return model(batch)\n\n\ndef run(model, batches):\n"
            "    with torch.no_grad():\n        return [evaluate(model, each) for each in batches]\n",
            "import torch\n\n\nclass A:\n    def forward(self, x):\n        with torch.enable_grad():\n"
            "            return self.fused(x)\n",
            "import torch\n\n\ndef update(params, grads):\n    for param in params:\n"
            "        param.add_(grads[param])\n",
            "import torch\n\n\ndef train(model, batch):\n    loss = model(batch).loss\n    loss.backward()\n",
        ],
    ),
    "returns-differ": (
        [
            "async def loop(self, ask):\n    while True:\n        try:\n            row = await ask()\n"
            "        except OSError:\n            return 0.0\n        if row is None:\n            return\n",
        ],
        [
            "def main(ask):\n    if ask():\n        return 1\n    return\n",
        ],
    ),
    "group-unnamed": (
        [
            "import torch.distributed as dist\n\n\ndef f(x, y, tp):\n    dist.all_reduce(x, group=tp.group)\n"
            "    dist.all_reduce(y, group=tp.group)\n    dist.all_reduce(x * y)\n",
        ],
        [
            "import torch.distributed as dist\n\n\ndef f(x, y, tp):\n    dist.all_reduce(x, group=tp.group)\n"
            "    dist.all_reduce(y)\n",
        ],
    ),
    "literal-placeholders": (
        [
            "def f(read, prefix):\n    return read('{prefix}.up.weight')\n",
            "def f(spec, tool):\n    return spec.get('text') or 'Call the {tool}.'\n",
        ],
        [
            "def f(app):\n    @app.post('/close/{worker}')\n    def close(worker):\n        return worker\n",
            "def f(read, prefix):\n    return read('{prefix}.up.weight').format(prefix=prefix)\n",
            "def f(log, color, tag):\n    log.debug(color + '{tag}', tag=tag)\n",
        ],
    ),
    "dropped-result": (
        ["import torch\n\n\ndef f(n, kind):\n    mask = n.make()\n    mask.to(kind)\n    return mask[None, :, :]\n"],
        ["import torch\n\n\ndef f(model, kind):\n    model.to(kind)\n    return model.layers[0]\n"],
    ),
    "print-in-library": (
        ["import logging\n\nlogger = logging.getLogger(__name__)\n\n\ndef f(x):\n    print(f'made {x}')\n"],
        ["import logging\n\nlog = logging.getLogger(__name__)\n\n\ndef f(x):\n    print(x)\n    print(log, x)\n"],
    ),
    "always-true": (
        [
            "import threading\n\n\nclass A:\n    def __init__(self):\n        self._lock = threading.Lock()\n\n"
            "    def f(self):\n        if self._lock:\n            self.n += 1\n",
        ],
        [
            "import threading\n\n\nclass A:\n    def __init__(self, n):\n"
            "        self._lock = threading.Lock() if n else None\n\n    def f(self):\n        if self._lock:\n"
            "            self._lock.acquire()\n",
        ],
    ),
    "never-awaited": (
        [
            "async def f(box, files):\n    await box.exec('a')\n    box.exec('b')\n    await files.sync()\n",
            "import asyncio\n\n\nasync def f():\n    asyncio.sleep(1)\n",
            "async def f(stream):\n    try:\n        return await stream.read()\n    finally:\n"
            "        stream.aclose()\n",
        ],
        [
            "async def f(box):\n    await box.start()\n    await box.load()\n    await box.check()\n    box.loop()\n",
            "async def f(box):\n    await box.start()\n    box.mark('a')\n    box.mark('b')\n    await box.check()\n",
            "async def f(box, other):\n    await box.exec('a')\n    other.exec('b')\n",
        ],
    ),
    "coroutine-as-value": (
        [
            "import aiohttp\n\n\nasync def f(session, url):\n    async with session.get(url) as answer:\n"
            "        rows = answer.json()\n        return rows['a']\n",
            "async def f(client, urls):\n    first = await client.get(urls[0])\n    last = client.get(urls[1])\n"
            "    return first.text, last.text\n",
        ],
        [
            "import asyncio\n\n\nasync def f(client, urls):\n    first = await client.get(urls[0])\n"
            "    last = client.get(urls[1])\n    return first.text, await last\n",
            "import httpx\n\n\nasync def f(client, url):\n    answer = await client.get(url)\n"
            "    rows = answer.json()\n    return rows['a']\n",
        ],
    ),
    "guard-contradicts": (
        [
            "def f(path):\n    if path.exists():\n        raise FileNotFoundError(f'{path} is not there')\n",
            "def f(rows, use):\n    if rows:\n        return\n    for row in rows:\n        use(row)\n",
            "def f(rows):\n    if rows is not None:\n        return 0\n    return len(rows)\n",
            "def f(t):\n    if t.size is not None:\n        raise ValueError('packing requires a size to be set')\n",
        ],
        [
            "def f(path):\n    if path.exists():\n        raise FileExistsError(f'{path} is there')\n",
            "def f(rows, use):\n    if rows:\n        return\n    rows = use()\n    for row in rows:\n"
            "        use(row)\n",
            "def f(bias):\n    if bias is not None:\n"
            "        raise ValueError('the kernel requires a bias-free layer')\n",
        ],
    ),
}


@pytest.fixture(scope="module")
def said(shared_world) -> dict[str, set[str]]:
    return shared_world.found_in_cases(CASES)


@pytest.mark.sample(9)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(said, rule):
    assert said[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}
