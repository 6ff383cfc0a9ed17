"""Clues to a defect in the lines around it: what is awaited or measured there, and along which dimension."""

from __future__ import annotations

from textwrap import dedent

import pytest

CASES: dict[str, tuple[list[str], list[str]]] = {
    "never-awaited": (
        [
            """
            import asyncio

            async def run(jobs):
                return asyncio.gather(*jobs)
            """,
            """
            import uvicorn

            async def serve(config):
                server = uvicorn.Server(config)
                server.serve()
            """,
        ],
        [
            """
            import asyncio

            async def run(jobs):
                return await asyncio.gather(*jobs)
            """,
            """
            import uvicorn

            def serve(config):
                server = uvicorn.Server(config)
                server.run()
            """,
        ],
    ),
    "coroutine-as-value": (
        [
            """
            class Agent:
                async def by_function(self, rows): ...

                async def run(self, rows):
                    if self.function:
                        found = self.by_function(rows)
                    else:
                        found = await self.by_server(rows)
                    return found[0] if found else None
            """,
        ],
        [
            """
            class Agent:
                async def by_function(self, rows): ...

                async def run(self, rows):
                    found = self.by_function(rows)
                    found = await found
                    return found[0] if found else None
            """,
        ],
    ),
    "blocking-in-async": (
        [
            """
            def watch(stop_event, sessions):
                async def close_on_stop():
                    stop_event.wait()
                    sessions.clear()

                return close_on_stop
            """,
        ],
        [
            """
            def watch(stop_event, sessions):
                async def close_on_stop():
                    await stop_event.wait()
                    sessions.clear()

                return close_on_stop
            """,
            """
            def watch(process):
                async def lifespan():
                    yield
                    process.join()

                return lifespan
            """,
        ],
    ),
    "collective-under-rank": (
        [
            """
            import torch.distributed as dist

            def update(rank, group, load):
                if rank != 0:
                    dist.barrier(group=group)
                load()
                dist.barrier(group=group)
            """,
        ],
        [
            """
            import torch.distributed as dist

            def update(changed, group, load):
                if changed:
                    dist.barrier(group=group)
                load()
                dist.barrier(group=group)
            """,
        ],
    ),
    "share-may-be-zero": (
        [
            """
            def shares(servers, world, size, per_node):
                nodes = world // per_node
                group = max(1, size // per_node)
                return servers // nodes, group
            """,
            """
            def rounds(rows, batch, more):
                steps = len(rows) // batch
                extra = max(len(more) // batch, 1)
                return extra, 100 % steps
            """,
            """
            class Plan:
                def spread(self, ranks, shards):
                    per_shard = ranks // self.shards
                    floor = max(1, shards // self.shards)
                    return floor + ranks / per_shard
            """,
        ],
        [
            """
            def shares(servers, world, size, per_node):
                nodes = max(1, world // per_node)
                group = max(1, size // per_node)
                rest = world // servers
                return servers // nodes, group, servers // rest
            """,
            """
            def rounds(rows, batch, more):
                steps = len(rows) // batch
                extra = max(len(more) // batch, 1)
                return extra, steps // 100
            """,
            """
            def spread(ranks, shards):
                per_shard = ranks // shards
                return ranks / per_shard
            """,
        ],
    ),
    "error-not-raised": (
        [
            """
            class Late(Exception):
                pass

            def on_alarm(signum, frame):
                Late()
            """,
        ],
        [
            """
            class Late(Exception):
                pass

            def on_alarm(signum, frame):
                raise Late()
            """,
        ],
    ),
    "literal-placeholders": (
        [
            """
            def pull(agent, handle, group):
                agent.wait(handle, context="weights of {group.name}", timeout=3)
            """,
        ],
        [
            """
            def pull(agent, handle, group):
                agent.wait(handle, pattern="weights of {group.name}", timeout=3)
            """,
        ],
    ),
    "deaf-loop": (
        [
            """
            import time

            def collect(queue, deadline):
                while True:
                    if time.monotonic() > deadline:
                        return None
                    item = queue.get()
                    if item:
                        return item
            """,
        ],
        [
            """
            import time

            async def collect(queue, seconds, asyncio):
                while True:
                    item = await queue.get()
                    deadline = time.monotonic() + seconds
                    while time.monotonic() < deadline:
                        remaining = deadline - time.monotonic()
                        if remaining <= 0:
                            break
                        item = await asyncio.wait_for(queue.get(), timeout=remaining)
            """,
        ],
    ),
    "evaluated-with-gradients": (
        [
            """
            import torch

            @torch.no_grad()
            def offload_model_to_cpu(models):
                return [model.to("cpu") for model in models]

            def load_model_to_gpu(models):
                return [model.to("cuda") for model in models]
            """,
        ],
        [
            """
            import torch

            @torch.no_grad()
            def clip_norm_with_experts(models):
                return [model.to("cpu") for model in models]

            def clip_norm_cpu_offload(models):
                return [model.to("cuda") for model in models]

            class Validator:
                @override
                @torch.no_grad()
                def check(self, x: torch.Tensor): ...

            class Runner:
                @override
                def check(self, x: torch.Tensor): ...
            """,
        ],
    ),
    "return-before-collective": (
        [
            """
            import torch.distributed as dist

            def reduce(loss, ring_attn_group):
                if dist.get_rank() != 0:
                    return
                dist.all_reduce(loss, group=ring_attn_group)
            """,
        ],
        [
            """
            import torch.distributed as dist

            def send(loss, update_group):
                if dist.get_rank() != 0:
                    return
                dist.broadcast(loss, src=0, group=update_group)
            """,
        ],
    ),
    "index-at-length": (
        [
            """
            def second(args, given):
                return args[1] if len(args) >= 1 else given
            """,
        ],
        [
            """
            def second(args, given):
                return args[1] if len(args) >= 2 else args[0] if len(args) >= 1 else given
            """,
        ],
    ),
    "guard-contradicts": (
        [
            """
            def grade(text, truth):
                found = normal(truth)
                if found is not None:
                    return False
                if found == text:
                    return True
                return text in found
            """,
        ],
        [
            """
            def grade(text, truth):
                found = normal(truth)
                if found is not None:
                    return False
                return text == truth
            """,
        ],
    ),
    "index-elsewhere": (
        [
            """
            def first(is_eos, at):
                at[is_eos.any(dim=1)] = is_eos.int().argmax(dim=0)[is_eos.any(dim=1)]
                return at
            """,
        ],
        [
            """
            def first(is_eos, at):
                at[is_eos.any(dim=1)] = is_eos.int().argmax(dim=1)[is_eos.any(dim=1)]
                return at
            """,
        ],
    ),
    "along-batch": (
        [
            """
            class Layer:
                def forward(self, x):
                    gate_up = self.gate_up_proj(x)[0]
                    gate, up = gate_up.split(self.gate_size, dim=0)
                    return gate * up
            """,
        ],
        [
            """
            class Layer:
                def forward(self, x):
                    gate_up = self.gate_up_proj(x)[0]
                    rows = x.split(self.rows, dim=0)
                    gate, up = gate_up.split(self.gate_size, dim=-1)
                    return gate * up, rows
            """,
        ],
    ),
    "unguarded-mask-division": (
        [
            """
            import torch

            def mean(x, mask):
                return torch.sum(x * mask, 1) / torch
            """,
        ],
        [
            """
            from pathlib import Path as root

            def place(name):
                return name / root
            """,
        ],
    ),
    "dropped-result": (
        [
            """
            import torch

            def scale(total, count):
                if isinstance(count, torch.Tensor):
                    count.to(total.device)
                return total / count
            """,
        ],
        [
            """
            import torch

            def scale(total, model):
                if isinstance(model, torch.nn.Module):
                    model.to(total.device)
                return model(total)
            """,
        ],
    ),
    "swallowed-error": (
        [
            """
            def record(f, entries):
                try:
                    if entries:
                        f(entries)
                        return "some", entries
                    else:
                        f()
                        return "none", {}
                except Exception:
                    pass
            """,
        ],
        [
            """
            def record(f, entries):
                try:
                    if entries:
                        f(entries)
                        return "some", entries
                except Exception:
                    pass
                return "none", {}
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
def test_a_rule_follows_a_clue_and_is_silent_where_there_is_none(said, rule):
    assert said[rule] == {f"bad_{number}" for number in range(len(CASES[rule][0]))}
