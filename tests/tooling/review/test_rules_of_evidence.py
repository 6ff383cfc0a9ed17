"""What gives a defect away beside it: the twin, the annotation, the docstring, the message, another use of a value."""

from __future__ import annotations

from textwrap import dedent

import pytest

CASES: dict[str, tuple[list[str], list[str]]] = {
    "guard-contradicts": (
        [
            """
            def f(mask, packed):
                if mask is not None:
                    return None
                rows = [1, 2]
                if packed:
                    rows = rows[1:]
                return rows[-mask.shape[1] :]
            """,
            """
            def join(old, new):
                if new is not None:
                    return old
                if old is None:
                    return {k: v for k, v in new.items()}
                return old | new
            """,
            """
            class Config:
                def __post_init__(self):
                    if self.model.get("use_remove_padding", False):
                        raise ValueError("For this you must enable `use_remove_padding`.")
            """,
        ],
        [
            """
            def f(mask, packed):
                if mask is not None:
                    return None
                if packed:
                    return packed
                return mask.shape
            """,
            """
            def f(mask, packed):
                if mask is not None:
                    return None
                if packed:
                    mask = packed
                return mask.shape
            """,
            """
            class Config:
                def __post_init__(self):
                    if self.model.get("use_remove_padding", False):
                        raise ValueError("Without that you must enable `use_dynamic`.")
            """,
        ],
    ),
    "argument-order": (
        [
            """
            import torch

            def step(params: list[torch.Tensor], grads: list[torch.Tensor], rate: float):
                extension().step(grads, params, rate)
            """,
            """
            class Layer:
                def connect(self, group: Group, rank: int, size: int):
                    self.attention.connect(rank, group, size)
            """,
            """
            class Base:
                def __init__(self, config, schema): ...


            class Tool(Base):
                def __init__(self, config, schema):
                    super().__init__(schema, config)
            """,
            """
            def outer(found):
                def place(name, state, is_param): ...

                for name, state, is_param in found:
                    place(name, is_param, state)
            """,
        ],
        [
            """
            import torch

            def gather(x: torch.Tensor, index: torch.Tensor, dim: int):
                return x.gather(dim, index)
            """,
            """
            class Base:
                def __init__(self, schema, config): ...


            class Tool(Base):
                def __init__(self, config, schema):
                    super().__init__(schema, config)
            """,
            """
            def outer(place, found):
                for name, state, is_param in found:
                    place(name, is_param, state)
            """,
        ],
    ),
    "literal-placeholders": (
        [
            """
            def tag(major):
                version = f"cp{major}"
                abi = "{version}"
                return version, abi
            """,
            """
            def state(modules):
                found = {}
                for prefix, name, value in modules:
                    found["{prefix}.{name}"] = value
                return found
            """,
            """
            def check(rows, size):
                assert len(rows) == size, "{len(rows)} is not {size}"
            """,
            """
            def setup(tag):
                mark = "[{tag}] " if tag else ""
                return mark
            """,
            """
            HINT = "as numbers"


            def ask(question):
                body = question
                body += "Answer: {HINT}\\n"
                return body
            """,
        ],
        [
            """
            def tag(major):
                version = f"cp{major}"
                name_template = "{version}"
                return version, name_template
            """,
            """
            def check(config, kind):
                assert config, "a mapping {kind: config}"
            """,
        ],
    ),
    "print-in-library": (
        [
            """
            def run(config):
                logger = setup_logger(config)
                logger.info("one")
                print(f"wrote {config}")
                logger.info("two")
            """,
        ],
        [
            """
            def run(config):
                logger = setup_logger(config)
                logger.info("one")
                print(config)
                print(config.name)
                print(config.size)
                logger.info("two")
            """,
        ],
    ),
    "group-not-forwarded": (
        [
            """
            import torch.distributed as dist

            def swap(x, out, cp_group: dist.ProcessGroup):
                dist.all_to_all_single(out, x)
            """,
        ],
        [
            """
            import torch.distributed as dist

            def swap(x, out, cp_group: dist.ProcessGroup, tp_group: dist.ProcessGroup):
                dist.all_to_all_single(out, x)
            """,
        ],
    ),
    "collective-under-rank": (
        [
            """
            import torch.distributed as dist

            def send(x, mp_group):
                if dist.get_rank() == 0:
                    dist.broadcast(x, src=0, group=mp_group)
            """,
        ],
        [
            """
            import torch.distributed as dist

            def send(x, rank, leaders_group):
                if rank == 0:
                    dist.broadcast(x, src=0, group=leaders_group)
                if dist.get_rank() != 0:
                    dist.broadcast(x, src=1, group=leaders_group)
            """,
        ],
    ),
    "return-before-collective": (
        [
            """
            import torch.distributed as dist

            def send(x, mp_group):
                if dist.get_rank() != 0:
                    return
                dist.broadcast_object_list(x, src=0, group=mp_group)
            """,
        ],
        [
            """
            import torch.distributed as dist

            def send(x, others_group):
                if dist.get_rank() == 0:
                    return
                dist.broadcast_object_list(x, src=1, group=others_group)
            """,
        ],
    ),
    "group-of-axis-unnamed": (
        [
            """
            import torch.distributed as dist

            def seed_all(mesh, seed):
                if mesh.get_local_rank() == 0:
                    seed.random_()
                dist.broadcast(seed, src=0)
            """,
        ],
        [
            """
            import torch.distributed as dist

            def seed_all(mesh, seed, other):
                if mesh.get_local_rank() == 0:
                    seed.random_()
                dist.broadcast(other, src=0)
            """,
        ],
    ),
    "blocking-in-async": (
        [
            """
            async def save(rows, path):
                def write():
                    with open(path, "w") as file:
                        file.writelines(rows)

                write()
            """,
            """
            class Sender:
                async def send(self, rows):
                    \"\"\"Encode and write in a worker thread.\"\"\"
                    self._write(rows)

                def _write(self, rows): ...
            """,
            """
            import asyncio

            async def loop(one, other):
                first = await asyncio.to_thread(one.get)
                return first, other.get()
            """,
        ],
        [
            """
            import asyncio

            async def save(rows, path):
                def write():
                    with open(path, "w") as file:
                        file.writelines(rows)

                await asyncio.to_thread(write)
            """,
            """
            import asyncio

            class Sender:
                async def send(self, rows):
                    \"\"\"Encode and write in a worker thread.\"\"\"
                    self._note(rows)
                    await asyncio.to_thread(self._write, rows)

                def _note(self, rows): ...

                def _write(self, rows): ...
            """,
            """
            import asyncio

            async def loop(one, settings):
                first = await asyncio.to_thread(one.get)
                return first, settings.get("x")
            """,
        ],
    ),
    "coroutine-as-value": (
        [
            """
            async def address(actor):
                host, port = actor.get_address.remote()
                return host, port
            """,
            """
            class Instance:
                async def reset(self, states): ...

                async def step(self, states): ...


            async def run(instance, states):
                found = instance.reset(states)
                states = found["states"]
                return await instance.step(states)
            """,
            """
            class Base:
                async def connect(self, source): ...


            class Teacher(Base):
                async def setup(self):
                    self.pool = self.connect(self.source)
            """,
        ],
        [
            """
            async def address(actor):
                host, port = actor.get_address.options(num_returns=2).remote()
                return host, port
            """,
            """
            class Instance:
                async def get(self, name): ...

                async def step(self): ...


            async def walk(instance):
                await instance.step()


            async def run(instance):
                return instance.get("x").items()
            """,
        ],
    ),
    "never-awaited": (
        [
            """
            class Adapter:
                async def init_server(self): ...


            def run(rollout):
                async def start():
                    rollout.init_server()
                    return rollout.engine

                return start
            """,
        ],
        [
            """
            class Adapter:
                async def open_server(self): ...


            class Other:
                def open_server(self): ...


            def run(rollout):
                async def start():
                    rollout.open_server()
                    return rollout.engine

                return start
            """,
        ],
    ),
    "deaf-loop": (
        [
            """
            import time

            def wait_for(condition, done, seconds):
                deadline = time.monotonic() + seconds
                while not done():
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise TimeoutError
                    condition.wait()
            """,
        ],
        [
            """
            import time

            def wait_for(condition, done, seconds):
                deadline = time.monotonic() + seconds
                while not done():
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise TimeoutError
                    condition.wait(timeout=remaining)
            """,
        ],
    ),
    "unmasked-numerator": (
        [
            """
            def mean(weights, response_mask, many):
                seq = masked_mean(weights, response_mask, axis=-1)
                seq_mask = response_mask.sum(-1) > 0
                if many:
                    return distributed_masked_mean(seq, seq_mask)
                return seq.sum() / seq_mask.sum().clamp_min(1)
            """,
        ],
        [
            """
            def mean(losses, mask):
                kept = losses * mask
                return kept.sum() / mask.sum().clamp_min(1)
            """,
        ],
    ),
    "dropped-result": (
        [
            """
            import torch

            def f(output):
                output["logits"].to(torch.float32)
                return output["logits"]
            """,
            """
            import torch

            def move(model):
                for _, buffer in model.named_buffers():
                    buffer.data.to("cuda")
            """,
        ],
        [
            """
            import torch

            def f(output):
                output["model"].to(torch.float32)
                return output["model"]
            """,
        ],
    ),
    "last-left-out": (
        [
            """
            def parts(rows, steps, size):
                found = []
                for i in range(steps - 1):
                    start, end = i * size, (i + 1) * size
                    found.append(rows[start:end])
                return found
            """,
            """
            def stages(self, chunks):
                staged = [[] for _ in range(self.stage_num - 1)]
                for i in range(self.stage_num):
                    staged[i].append(chunks[i])
                return staged
            """,
            """
            def pick(data, most):
                kept = data[-1]
                data = data.select(range(min(most, len(data)) - 1))
                return kept, data
            """,
        ],
        [
            """
            def parts(rows, steps):
                return [rows[i] for i in range(steps - 1)]
            """,
        ],
    ),
    "always-holds": (
        [
            """
            def fix(text):
                try:
                    assert len(text) >= 2
                except AssertionError:
                    return text
                if len(text) >= 2:
                    return text[2:]
                else:
                    return ""
            """,
            """
            def sections(envs):
                if len(envs) == 1:
                    return "one"
                elif len(envs) >= 1:
                    return "many"
                else:
                    return "none"
            """,
        ],
        [
            """
            def fix(text):
                assert len(text) >= 2
                text = text.strip()
                if len(text) >= 2:
                    return text[2:]
                else:
                    return ""
            """,
            """
            def sections(envs):
                if len(envs) == 1:
                    return "one"
                elif len(envs) > 1:
                    return "many"
                else:
                    return "none"
            """,
        ],
    ),
    "index-elsewhere": (
        [
            """
            def f(x):
                return scatter(x.squeeze(dim=1)).unsqueeze(dim=0)
            """,
        ],
        [
            """
            def f(x):
                return scatter(x.squeeze(dim=0)).unsqueeze(dim=0)
            """,
        ],
    ),
    "swallowed-error": (
        [
            """
            class Data:
                def read(self, keys):
                    for key in keys:
                        try:
                            self.prompts = self.prompts.apply(lambda x: pick(x)[key])
                        except Exception:
                            pass
                    for key in keys:
                        try:
                            self.answers = self.answers.apply(lambda x: pick(x)[key])
                        except Exception:
                            print(self.answers)
                            raise
            """,
        ],
        [
            """
            class Data:
                def read(self, keys):
                    for key in keys:
                        try:
                            self.prompts = self.prompts.apply(lambda x: pick(x)[key])
                        except Exception:
                            pass
                    try:
                        self.answers = load(keys)
                    except Exception:
                        print(self.answers)
                        raise
            """,
        ],
    ),
    "unbound-after-except": (
        [
            """
            def send(gpu):
                try:
                    uuid = device_uuid(gpu)
                except Exception:
                    pass

                def flush(rows):
                    return {uuid: rows}

                return flush
            """,
        ],
        [
            """
            def send(gpu):
                try:
                    uuid = device_uuid(gpu)
                except Exception:
                    pass

                def flush(rows, uuid):
                    return {uuid: rows}

                return flush
            """,
        ],
    ),
    "evaluated-with-gradients": (
        [
            """
            import torch

            class Maker:
                def get_advantages_and_returns(self, values: torch.Tensor, rewards, action_mask, gamma):
                    return rewards.clone()

                @torch.no_grad()
                def get_cumulative_returns(self, rewards: torch.Tensor, action_mask, gamma):
                    return rewards.clone()
            """,
            """
            import torch

            def offload_model_to_cpu(models):
                for model in models:
                    model.to("cpu")


            @torch.no_grad()
            def load_model_to_gpu(models):
                for model in models:
                    model.to("cuda")
            """,
        ],
        [
            """
            import torch

            class Maker:
                def get_loss_and_returns(self, values: torch.Tensor, rewards, action_mask, gamma):
                    return rewards.clone()

                @torch.no_grad()
                def cumulative_returns(self, rewards: torch.Tensor, action_mask, gamma):
                    return rewards.clone()
            """,
        ],
    ),
}


@pytest.fixture(scope="module")
def said(shared_world) -> dict[str, set[str]]:
    cases = {rule: [[dedent(each) for each in texts] for texts in both] for rule, both in CASES.items()}
    return shared_world.found_in_cases(cases)


@pytest.mark.sample(5)
@pytest.mark.parametrize("rule", CASES)
def test_a_rule_finds_what_stands_beside_a_defect_and_is_silent_elsewhere(said, rule):
    assert said[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}
