"""What a file gives away by itself, with nothing before it to compare: each rule finds its cases and nothing beside
them."""

from __future__ import annotations

import pytest

BOX = "class Box:\n    async def exec(self, command): ...\n    def name(self): ...\n\n\n"
TORCH = "import torch\n\n\n"
CASES: dict[str, tuple[list[str], list[str]]] = {
    "never-awaited": (
        [
            f"{BOX}async def f(box: Box):\n    box.exec('a')\n",
            f"{BOX}class Arm:\n    def __init__(self, box: Box):\n        self.box = box\n\n    async def f(self):\n"
            "        self.box.exec('a')\n",
            "async def render(body): ...\n\n\nasync def f(body, stream):\n    if stream:\n"
            "        return render(body)\n    return await render(body)\n",
            "class M:\n    async def log_all(self): ...\n    async def flush_all(self): ...\n\n\n"
            "async def f(monitors):\n    for monitor in monitors:\n        await monitor.log_all()\n"
            "        monitor.flush_all()\n",
        ],
        [
            f"{BOX}async def f(box: Box):\n    await box.exec('a')\n    box.name()\n",
            "from collections.abc import Awaitable\n\n\nasync def render(body): ...\n\n\n"
            "async def f(body) -> Awaitable[str]:\n    return render(body)\n",
            "async def render(body): ...\n\n\ndef f(body):\n    return render(body)\n",
            "def f(stop_event):\n    stop_event.wait()\n",
            "class M:\n    async def log_all(self): ...\n    async def drop_all(self): ...\n\n\n"
            "class N:\n    def drop_all(self): ...\n\n\nasync def f(monitors):\n    for monitor in monitors:\n"
            "        await monitor.log_all()\n        monitor.drop_all()\n",
        ],
    ),
    "coroutine-as-value": (
        [
            "async def connect(source): ...\n\n\nclass Pool:\n    async def setup(self):\n"
            "        self.pool = connect(self.source)\n        self.pools.append(self.pool)\n",
            "async def ask(question): ...\n\n\nasync def f(question):\n    answer = ask(question)\n    print(answer)\n"
            "    return answer['text']\n",
            "import openai\n\n\nclient = openai.AsyncOpenAI()\n\n\nasync def f(messages):\n"
            "    answer = client.chat.completions.create(messages=messages)\n    return answer.choices[0]\n",
            "import asyncio\n\n\nclass A:\n    async def f(self):\n        first = await self.box.exec('a')\n"
            "        last = self.box.exec('b')\n        return first, last.stdout\n\n    def g(self, loop):\n"
            "        return loop.run_until_complete(self.box.exec('c'))\n",
        ],
        [
            "import asyncio\n\n\nasync def connect(source): ...\n\n\nclass Pool:\n    async def setup(self):\n"
            "        self.task = connect(self.source)\n        self.pool = await self.task\n",
            "async def ask(question): ...\n\n\nasync def f(question, start):\n    answer = ask(question)\n"
            "    return start(answer)\n",
            "import openai\n\n\nclient = openai.OpenAI()\n\n\nasync def f(messages):\n"
            "    answer = client.chat.completions.create(messages=messages)\n    return answer.choices[0]\n",
        ],
    ),
    "guard-contradicts": (
        [
            "def f(rows):\n    if isinstance(rows, dict):\n        return None\n    return rows.get('a')\n",
            "import os\n\n\ndef f(path):\n    if os.path.exists(path):\n        return None\n"
            "    with open(path) as file:\n        return file.read()\n",
            "def f(tokenizer, text):\n    if tokenizer is not None:\n        return text\n"
            "    pad = tokenizer.pad_id or tokenizer.eos_id\n    return [pad, text]\n",
            "import re\n\n\ndef f(text):\n    found = re.findall('a', text)\n    if found:\n        return text\n"
            "    return found[-1].strip()\n",
            "def has_xformers_swiglu():\n    if is_xformers_available():\n        return False\n"
            "    from xformers.ops import swiglu\n    return swiglu is not None\n",
            "def f(config):\n    if hasattr(config, 'rollout'):\n"
            "        raise ValueError('missing rollout settings')\n",
            "class B:\n    def check(self):\n        if self.drop_last:\n"
            "            raise ValueError('Drop last must be True.')\n",
            "import wandb\n\n\ndef f(args):\n    if args.use_wandb:\n        return\n    wandb.finish()\n",
            "def f(self):\n    if self.lora_rank is None:\n        raise ValueError('`lora_rank` is only valid')\n",
            "class C:\n    def on_log(self, state):\n        if not state.is_main:\n            return\n"
            "        if self.bar is not None:\n            self.bar.close()\n\n    def on_end(self, state):\n"
            "        if state.is_main:\n            return\n        if self.bar is not None:\n"
            "            self.bar.close()\n",
            "def f(layer):\n    own = layer.own\n    if own is None:\n        return own\n    return layer.other\n",
            "def f(model):\n    if hasattr(model, 'optimizer'):\n        return None\n"
            "    if model.optimizer is not None:\n        return model.optimizer.state\n",
            "def f(args, sample):\n    if args.reward_path is None:\n        score = load_function(args.reward_path)\n"
            "        return score(sample)\n",
            "def f(tokenizer):\n    if is_byte_level(tokenizer):\n"
            "        raise NotImplementedError('supports only ByteLevel tokenizers')\n",
            "def f(self):\n    if self.tokenizer is not None:\n        return\n    self.save(1, self.tokenizer)\n",
            "def f(model, kind):\n    if model:\n        return model\n    own = isinstance(model, kind)\n"
            "    return own\n",
            "def f(a, b):\n    if (x := a()) is None:\n        return x\n    if (x := b()) is not None:\n"
            "        return x\n    return 1\n",
            "import re\n\n\ndef f(name):\n    m = re.match('a', name)\n    if m:\n        raise KeyError(name)\n"
            "    return m.groups()\n",
            "def f(rows, load):\n    if rows:\n        return None\n    table = load(rows)\n    return table\n",
            "def f(x, name):\n    if hasattr(x, name):\n        raise AttributeError(name)\n    x = getattr(x, name)\n"
            "    return x\n",
            "def f(folder):\n    if folder.exists():\n        return []\n    for each in folder.rglob('*.py'):\n"
            "        each.unlink()\n",
            "def f(self):\n    if self.kind == 'silu':\n        raise ValueError('the activation must be silu')\n",
            "class A:\n    def f(self):\n        if self.key is not None:\n            raise RuntimeError('early')\n"
            "        return self.key\n",
            "def f(path, load):\n    if path is None:\n        assert 'step_' in path\n    return load(path)\n",
            "def f(c):\n    if c.size is not None:\n        raise ValueError('Please set size in the settings')\n",
            "def f(self):\n    if self.config.folder:\n        raise ValueError('folder must be provided to test')\n",
            "def f(call):\n    if callable(call):\n        raise ValueError(f'{call} is not callable')\n",
            "import importlib.util\n\n\ndef has_x():\n    if importlib.util.find_spec('x') is not None:\n"
            "        return False\n    import x\n\n    return x.works()\n",
            "def f(c):\n    if c.rank is not None:\n        raise ValueError('Attention requires rank to be set')\n",
        ],
        [
            "def f(x):\n    if x is None:\n        return x\n    return x.y\n",
            "def f(x, make):\n    if x is None:\n        return x\n    if make:\n        x = make()\n    return x\n",
            "def f(rows, load):\n    if rows:\n        return None\n    load(rows)\n    return rows\n",
            "def f(kind):\n    if kind == 'silu':\n        raise ValueError('the activation must not be silu')\n",
            "def f(rows):\n    if isinstance(rows, list):\n        return None\n    return rows.get('a')\n",
            "import os\n\n\ndef f(path):\n    if os.path.exists(path):\n        return None\n"
            "    with open(path, 'w') as file:\n        file.write('')\n",
            "def f(tokenizer, text, load):\n    if tokenizer is not None:\n        return text\n"
            "    tokenizer = load()\n    return [tokenizer.pad_id or tokenizer.eos_id, text]\n",
            "def f(rows, fill):\n    if rows:\n        return rows\n    fill(rows)\n"
            "    rows.extend(fill(1))\n    return rows\n",
            "def f(config):\n    if hasattr(config, 'rollout'):\n"
            "        raise ValueError('rollout settings are not used')\n",
            "class B:\n    def check(self):\n        if self.shuffle:\n"
            "            raise ValueError('Drop last must be True.')\n",
            "def f(model, make):\n    if hasattr(model, 'optimizer'):\n        return None\n"
            "    model.optimizer = make()\n    return model.optimizer.state\n",
            "def f(self):\n    if self.tokenizer is not None:\n        return self.tokenizer.name\n"
            "    return self.save(1, self.tokenizer)\n",
            "def f(model, init, logger):\n    if model:\n        return model\n    logger.info('none', model)\n"
            "    model = init()\n    return init(model)\n",
            "def f(args, wandb):\n    if args.use_wandb:\n        return\n    wandb.finish()\n",
            "def f(c):\n    if c.size is not None:\n        raise ValueError('Please set length instead of size')\n",
            "def f(self):\n    if self.lora_rank is None:\n        raise ValueError('`lora_rank` cannot be None')\n",
            "class C:\n    def on_log(self, state):\n        if not state.is_main:\n            return\n"
            "        self.send(state)\n\n    def on_end(self, state):\n        if state.is_main:\n"
            "            return\n        self.receive(state)\n",
        ],
    ),
    "swallowed-error": (
        [
            "def f(path, load, logger):\n    try:\n        rows = load(path)\n        rows.sort()\n"
            "        logger.info('loaded the rows')\n    except Exception:\n        pass\n",
            "async def call(client, batch):\n    try:\n        return await client.generate(batch)\n"
            "    except Exception:\n        pass\n",
            "import json\n\n\ndef f(path):\n    try:\n        rows = json.loads(path)\n        return rows\n"
            "    except ValueError:\n        raise RuntimeError(path) from None\n    except Exception:\n        pass\n"
            "    return None\n",
            "from contextlib import contextmanager\n\n\n@contextmanager\ndef measured(clock):\n    start = clock()\n"
            "    try:\n        if start:\n            yield start\n    except Exception:\n        pass\n",
        ],
        [
            "def f(path, load, logger):\n    try:\n        rows = load(path)\n        if rows:\n"
            "            logger.info('found some')\n            return rows\n    except Exception:\n        pass\n"
            "    return []\n",
            "def find_version(read):\n    try:\n        return read('version')\n    except Exception:\n        pass\n",
            "def f(read) -> str | None:\n    try:\n        return read('name')\n    except Exception:\n        pass\n",
            "def f(urls, ask):\n    for url in urls:\n        try:\n            return ask(url)\n"
            "        except Exception:\n            pass\n",
        ],
    ),
    "unbound-after-except": (
        [
            "def f(read, use):\n    while True:\n        try:\n            line = read()\n        except Exception:\n"
            "            pass\n        if line == 'exit':\n            break\n        use(line)\n",
            "def f(load, name, big):\n    try:\n        if big:\n            model = load(name, 2)\n        else:\n"
            "            model = load(name)\n    except Exception:\n        pass\n    if model.size:\n"
            "        return model\n    return None\n",
            "def f(sync, queue, full):\n    try:\n        stats, _ = sync()\n    except Exception:\n        pass\n"
            "    try:\n        queue.put_nowait(stats)\n    except full:\n        queue.get()\n",
        ],
        [
            "def f(read, use):\n    line = ''\n    while line != 'exit':\n        try:\n            line = read()\n"
            "        except Exception:\n            pass\n        if line:\n            use(line)\n",
            "def f(load, use):\n    found = False\n    try:\n        model = load()\n        found = True\n"
            "    except Exception:\n        pass\n    if found:\n        use(model)\n",
            "def f(load, use):\n    try:\n        model = load()\n    except Exception:\n        pass\n    try:\n"
            "        use(model)\n    except NameError:\n        use(None)\n",
        ],
    ),
    "evaluated-with-gradients": (
        [
            "import torch\n\n\n@torch.no_grad()\ndef offload_optimizer(states):\n    return states.to('cpu')\n\n\n"
            "def load_optimizer(states):\n    return states.to('cuda')\n",
            "import torch\n\n\nclass C:\n    @torch.no_grad()\n    def on_train_begin(self, model):\n"
            "        self.mean = model.clone()\n\n    def on_train_end(self, model):\n"
            "        self.mean.save_pretrained('mean')\n",
            "import torch\n\n\ndef gamma(ratio, mask):\n    'Weight that torch.no_grad() detaches, a plain scale.'\n"
            "    return torch.exp(ratio) * mask\n",
        ],
        [
            "import torch\n\n\n@torch.no_grad()\ndef offload_optimizer(states):\n    return states.to('cpu')\n\n\n"
            "def name_optimizer(states):\n    return 'adam'\n",
            "import torch\n\n\nclass C:\n    @torch.no_grad()\n    def run_inference(self, model):\n"
            "        return model.to('cpu')\n\n    def run_server(self, model):\n        return model.to('cuda')\n",
            "import torch\n\n\n@torch.no_grad()\ndef score_eval(logits):\n    return logits.exp()\n\n\n"
            "def score(logits):\n    return logits.exp()\n",
            "import torch\n\n\ndef gamma(ratio, mask):\n    'Weight; callers must use torch.no_grad() around it.'\n"
            "    return torch.exp(ratio) * mask\n",
        ],
    ),
    "along-batch": (
        [
            f"{TORCH}def f(attention_mask):\n    return torch.clip(torch.cumsum(attention_mask, dim=0) - 1, min=0)\n",
            f"{TORCH}def f(batch):\n    lengths = batch.attention_mask.sum(dim=0)\n    return lengths.max()\n",
            f"{TORCH}def f(freqs):\n    emb = torch.cat((freqs, freqs), dim=0)\n    return emb.cos(), emb.sin()\n",
            f"{TORCH}def f(action_mask):\n    return action_mask.long().fliplr().argmax(dim=0, keepdim=True)\n",
        ],
        [
            f"{TORCH}def f(attention_mask):\n    return torch.cumsum(attention_mask, dim=-1) - 1\n",
            f"{TORCH}def f(loss_mask):\n    per_position = loss_mask.sum(dim=0)\n    return per_position\n",
            f"{TORCH}def f(rows):\n    both = torch.cat((rows, rows), dim=0)\n    return both.mean()\n",
            f"{TORCH}def f(lengths):\n    return torch.cumsum(lengths, dim=0)\n",
        ],
    ),
    "cut-elsewhere": (
        [
            f"{TORCH}def f(q, n, turn):\n    first, rest = q[..., :n], q[..., n:]\n"
            "    return torch.cat([turn(first), rest], dim=0)\n",
            f"{TORCH}def f(values):\n    _, order = torch.sort(values, descending=True, dim=0)\n"
            "    return values.gather(-1, order)\n",
            f"{TORCH}def f(x):\n    return torch.cat(x.chunk(2, dim=1)[::-1], dim=0)\n",
            f"{TORCH}def f(x):\n    one, two = x.chunk(2, dim=1)\n    return torch.cat([two, one], dim=0)\n",
            f"{TORCH}def f(bias):\n    return torch.cat([bias[64:], bias[:64]], dim=1)\n",
            f"{TORCH}def f(first, ids):\n    return torch.cat([first, ids[..., :-1]], dim=0)\n",
            f"{TORCH}def f(x, most):\n    shape = list(x.shape)\n    shape[-1] = most\n"
            "    pad = torch.full(shape, 0)\n    return torch.cat([x, pad], dim=0)\n",
        ],
        [
            f"{TORCH}def f(q, n, turn):\n    first, rest = q[..., :n], q[..., n:]\n"
            "    return torch.cat([turn(first), rest], dim=-1)\n",
            f"{TORCH}def f(values):\n    _, order = torch.sort(values, dim=0)\n    return values.gather(0, order)\n",
            f"{TORCH}def f(x):\n    return torch.cat([x[:64], x[64:]], dim=1)\n",
            f"{TORCH}def f(x):\n    return torch.cat([x[..., :8], x[..., 8:]], dim=0)\n",
            f"{TORCH}def f(x, most):\n    shape = list(x.shape)\n    shape[0] = most\n"
            "    pad = torch.full(shape, 0)\n    return torch.cat([x, pad], dim=0)\n",
            f"{TORCH}def f(x, n):\n    rest = x[..., n:]\n    rest = rest.mean(dim=-1)\n"
            "    return torch.cat([x, rest], dim=0)\n",
        ],
    ),
    "unlike-twin": (
        [
            f"{TORCH}def f(a, b, m, n, pad):\n    ids = torch.cat((pad(a, 9), pad(b, 9)), dim=0)\n"
            "    masks = torch.cat((pad(m, 9), pad(n, 9)), dim=1)\n    return ids, masks\n",
            f"{TORCH}def f(logits, labels):\n    chosen_logits, _ = logits.chunk(2, dim=0)\n"
            "    chosen_labels, _ = labels.chunk(2, dim=1)\n    return chosen_logits, chosen_labels\n",
            f"{TORCH}def f(a, b, c, kind):\n    if kind == 1:\n        full = torch.cat([a, b], dim=0)\n"
            "    elif kind == 2:\n        full = torch.cat([b, c], dim=1)\n    else:\n"
            "        full = torch.cat([a, b, c], dim=0)\n    return full\n",
        ],
        [
            f"{TORCH}def f(a, b, m, n, pad, cut):\n    ids = torch.cat((pad(a, 9), pad(b, 9)), dim=0)\n"
            "    masks = torch.cat((cut(m, 9), cut(n, 9)), dim=1)\n    return ids, masks\n",
            f"{TORCH}def f(a, b, kind):\n    if kind == 1:\n        full = torch.cat([a, b], dim=0)\n    else:\n"
            "        full = torch.cat([a, b], dim=1)\n    return full\n",
        ],
    ),
    "always-holds": (
        [
            "def f(args):\n    if args.fused and args.tensor_parallel_size >= 1:\n"
            "        raise ValueError('not with tensor parallelism')\n",
            "def f(pp_size, gather):\n    if pp_size >= 1:\n        gather(pp_size)\n",
        ],
        [
            "def f(args):\n    return args.tensor_parallel_size if args.tensor_parallel_size >= 1 else 1\n",
            "def f(pp_size, gather):\n    if pp_size > 1:\n        gather(pp_size)\n",
            "def f(rows):\n    balance = 0\n    for row in rows:\n        balance += row\n    if balance >= 0:\n"
            "        return True\n    return False\n",
        ],
    ),
    "last-left-out": (
        [
            "def f(items, size):\n    num_batches = (len(items) + size - 1) // size\n    found = []\n"
            "    for i in range(num_batches - 1):\n        found.append(items[i * size : (i + 1) * size])\n"
            "    return found\n",
            "def f(num_epochs, rows, train):\n    for epoch in range(num_epochs - 1):\n        train(rows, epoch)\n"
            "    return rows[-1]\n",
            "def f(rows, limit):\n    return rows.select(range(min(limit, len(rows)) - 1))\n",
        ],
        [
            "def f(items, num_items):\n    return [items[i] - items[i + 1] for i in range(num_items - 1)]\n",
            "def f(num_epochs, rows, train):\n    for epoch in range(num_epochs):\n        train(rows, epoch)\n",
            "def f(num_steps, rows):\n    for step in range(num_steps - 1):\n        rows.append(step)\n"
            "    rows.append(rows[-1])\n",
        ],
    ),
    "reward-swallows": (
        [
            "def score_answer(answer, grade):\n    try:\n        return grade(answer)\n    except Exception:\n"
            "        return 0.0\n",
            "async def compute_score_async(answer, grade):\n    try:\n        return await grade(answer)\n"
            "    except Exception:\n        return 0.0\n",
        ],
        [
            "def score_answer(answer, grade):\n    try:\n        return grade(answer)\n    except ValueError:\n"
            "        return 0.0\n",
            "def score_answer(answer, grade, log):\n    try:\n        return grade(answer)\n    except Exception:\n"
            "        log(answer)\n        raise\n",
        ],
    ),
    "default-kept": (
        [
            "class Trainer:\n    def __init__(self, callbacks=[]):\n        self.callbacks = callbacks\n",
            "def f(rows={}):\n    if rows is None:\n        rows = load()\n    return rows\n",
            "class Spec:\n    def __init__(self, names=[]):\n        if isinstance(names, str):\n"
            "            names = [names]\n        self.names = names\n",
        ],
        [
            "class Trainer:\n    def __init__(self, callbacks=()):\n        self.callbacks = callbacks\n",
            "class Trainer:\n    def __init__(self, extras={}):\n        extras = extras or {}\n"
            "        self.extras = extras\n",
            "class Trainer:\n    def __init__(self, names=[]):\n        self.names = list(names)\n",
        ],
    ),
}


@pytest.fixture(scope="module")
def said(shared_world) -> dict[str, set[str]]:
    return shared_world.found_in_cases(CASES)


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_is_wrong_and_is_silent_on_what_is_right(said, rule):
    assert said[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}


def test_a_print_is_odd_in_a_package_whose_modules_log_and_not_where_as_many_print(world):
    logs = "import logging\n\n\ndef f(x):\n    logging.info(x)\n"
    says = "def f(x):\n    print(x)\n"
    some = {f"{root}/m{number}.py": logs for root in ("quiet", "mixed") for number in range(8)}
    roots = {f"{root}/__init__.py": "" for root in ("quiet", "mixed")}
    world.commit(some | roots | {f"mixed/n{number}.py": says for number in range(3)})
    shows = {"quiet/show.py": "def show(x):\n    print(x)\n", "quiet/cli/run.py": says}
    world.commit({"quiet/a.py": says, "mixed/a.py": says, **shows})
    assert world.found() == [("print-in-library", "quiet/a.py", 2)]


def test_a_function_runs_without_gradients_where_all_others_of_its_name_and_decorator_do(world):
    forward = "    @dynamic_rope\n    def forward(self, x):\n        return torch.cos(x)\n"
    plain = f"import torch\nfrom ropes import dynamic_rope\n\n\nclass A:\n{forward}"
    guarded = plain.replace(forward, f"    @torch.no_grad()\n{forward}")
    world.commit({"rope/__init__.py": "", "rope/one.py": guarded})
    world.commit({"rope/two.py": plain, "rope/three.py": plain.replace("    @dynamic_rope\n", "")})
    assert world.found() == [("evaluated-with-gradients", "rope/two.py", 7)]
