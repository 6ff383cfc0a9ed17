"""Embedded engine against `transformers` generate: same weights and sampling, alternating in one process, tokens/s.

    python benchmarks/embedded_engine.py                        # table
    python benchmarks/embedded_engine.py --json --threads 2     # for machines

Two shapes of work:

equal   every sequence has the same prompt length and the same number of new tokens: the best case of a static batch.
grpo    groups of samples that share a prompt, prompts of different lengths, answers that end at random (geometric)
        within a budget: what RL asks for. A static batch idles on finished rows and padding, and computes each prompt
        once per sample.

Not the same work on both sides: the engine also records the exact float32 log-probability of every token, which RL
needs; `generate` returns token ids only (with --reference-logits it keeps the logits, from which log-probabilities
could be had). On CPU in float32 both sides are bound by the same matrix products, so on equal lengths a factor of 1.5
to 2 is what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from common import add_device_argument, alternate, device_dtype, machine, require_device, set_thread_environment
from gpu_step import SIZES as LARGE

if TYPE_CHECKING:
    from torch import Tensor

    from areal.api import InferenceEngine, ModelRequest

SIZES: dict[str, dict[str, Any]] = {
    "0.4M": {"hidden_size": 96, "num_hidden_layers": 3, "intermediate_size": 256},
    "0.8M": {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 384},
    "25M": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "head_dim": 64,
    },
    "100M": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    **LARGE,
}
"""Changes of a small Qwen3; those of gpu_step.py have vocabularies of their own, in which an answer ends late."""
VOCAB_SIZE = 256
CONTEXT = 1024
# Ids 0 .. 3 may end an answer: under near-uniform predictions a mean length of VOCAB_SIZE / 4 = 64 tokens.
STOP_IDS = (0, 1, 2, 3)


def model_config(size: str) -> dict[str, Any]:
    """config.json of a Qwen3 with random weights."""
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        **SIZES[size],
    }


def make_prompts(count: int, lengths: tuple[int, int], *, seed: int = 0) -> list[list[int]]:
    """Prompts of random ids that never contain a stop id; lengths uniform in the closed range."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    low, high = lengths
    chosen = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [torch.randint(4, VOCAB_SIZE, (length,), generator=generator).tolist() for length in chosen]


class EngineSide:
    """An engine of ours: all requests at once; it batches them itself."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.seed = 0

    def run(self, prompts: list[list[int]], *, group: int, new_tokens: int, stops: tuple[int, ...]) -> int:
        """Tokens produced for `group` samples of each prompt."""
        from areal.api import GenerationConfig, ModelRequest

        config = GenerationConfig(max_new_tokens=new_tokens, stop_token_ids=stops)
        requests = []
        for prompt in prompts:
            for _ in range(group):
                self.seed += 1
                requests.append(ModelRequest(input_ids=prompt, gconfig=config, seed=self.seed))
        return asyncio.run(self._all(requests))

    async def _all(self, requests: list[ModelRequest]) -> int:
        responses = await asyncio.gather(*map(self.engine.agenerate, requests))
        return sum(len(response.output_tokens) for response in responses)


class ReferenceSide:
    """`transformers` generate: left-padded static batches of at most `batch` rows."""

    def __init__(self, folder: str, *, batch: int, keep_logits: bool, device: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        dtype = getattr(torch, device_dtype(device))
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.batch = batch
        self.keep_logits = keep_logits

    def run(self, prompts: list[list[int]], *, group: int, new_tokens: int, stops: tuple[int, ...]) -> int:
        """Tokens produced for `group` samples of each prompt, those after a row's end not counted."""
        per_batch = max(1, self.batch // group)
        total = 0
        for first in range(0, len(prompts), per_batch):
            total += self._one(prompts[first : first + per_batch], group, new_tokens, stops)
        return total

    def _one(self, prompts: list[list[int]], group: int, new_tokens: int, stops: tuple[int, ...]) -> int:
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        out = self.model.generate(
            ids.to(self.model.device),
            attention_mask=mask.to(self.model.device),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new_tokens,
            eos_token_id=list(stops) or None,
            pad_token_id=0,
            num_return_sequences=group,
            return_dict_in_generate=True,
            output_logits=self.keep_logits,
        )
        return count_tokens(out.sequences[:, width:].cpu(), stops)


def count_tokens(outputs: Tensor, stops: tuple[int, ...]) -> int:
    """Tokens up to and including each row's first stop id."""
    import torch

    ended = torch.isin(outputs, torch.tensor(stops, dtype=outputs.dtype)).cummax(dim=1).values
    return int((~ended).sum() + ended[:, -1].sum())


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures per shape of work."""
    import torch

    from areal.engine.config import EmbeddedEngineConfig
    from areal.engine.embedded.engine import EmbeddedEngine
    from areal.models import from_config, save_pretrained

    # Written in float32 on the host by either side's way; then both compute in the same dtype.
    model = from_config(model_config(arguments.size), dtype=getattr(torch, device_dtype(arguments.device)))
    most = max([128, *arguments.batch])
    config = EmbeddedEngineConfig(
        max_seq_len=CONTEXT, max_batch_size=most, device=arguments.device, cuda_graphs=arguments.cuda_graphs
    )
    engine = EngineSide(EmbeddedEngine(model, config=config, eos_token_id=None))
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        reference = ReferenceSide(folder, batch=most, keep_logits=arguments.reference_logits, device=arguments.device)
    shapes: list[tuple[str, list[list[int]], dict[str, Any]]] = [
        (
            f"equal, batch {batch}",
            make_prompts(batch, (arguments.prompt, arguments.prompt)),
            {"group": 1, "new_tokens": arguments.new_tokens, "stops": ()},
        )
        for batch in arguments.batch
    ]
    if arguments.groups:
        prompts = make_prompts(arguments.groups, (arguments.prompt // 2, arguments.prompt * 3 // 2))
        options = {"group": 8, "new_tokens": 2 * arguments.new_tokens, "stops": STOP_IDS}
        shapes.append((f"grpo, {arguments.groups} groups of 8", prompts, options))
    rows = []
    for name, prompts, options in shapes:
        sides = {
            "engine": lambda prompts=prompts, options=options: engine.run(prompts, **options),
            "transformers": lambda prompts=prompts, options=options: reference.run(prompts, **options),
        }
        clock = time.process_time if arguments.clock == "cpu" else time.perf_counter
        before = engine.engine.stats()
        rates = alternate(sides, rounds=arguments.rounds, clock=clock)
        found = {"shape": name, **rates, "ratio": rates["engine"]["median"] / rates["transformers"]["median"]}
        if not options["stops"]:
            # Every step has all rows: a prefill, which this counts too, and a step for each further token.
            found["step_milliseconds"] = 1000 * len(prompts) / rates["engine"]["median"]
        after = engine.engine.stats()
        if "replayed_steps" in after:
            replayed, steps = (after[name] - before[name] for name in ("replayed_steps", "decode_steps"))
            found["replayed"] = replayed / steps
        rows.append(found)
    return rows


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="0.8M", help="model, by parameters (default 0.8M)")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32, 128], help="batch sizes of the equal shape")
    parser.add_argument("--groups", type=int, default=48, help="prompts of the grpo shape; 0 skips it")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens (grpo: uniform 1/2 .. 3/2 of this)")
    parser.add_argument("--new-tokens", type=int, default=128, help="new tokens (grpo: budget of twice this)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds per side")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of both sides")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a busy machine, with 1 thread"
    )
    add_device_argument(parser)
    parser.add_argument(
        "--cuda-graphs", choices=("auto", "on", "off"), default="auto", help="of the engine, on a GPU (auto)"
    )
    parser.add_argument("--reference-logits", action="store_true", help="let transformers keep its logits as well")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse()
    set_thread_environment(arguments.threads)
    import torch

    require_device("embedded_engine", arguments.device)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    from areal.models.blocks.linear import measure_products, use_products

    # As a run does when it starts; `generate` has layers of its own.
    rates = measure_products()
    use_products(rates.fastest)
    rows = measure(arguments)
    if arguments.json:
        print(
            json.dumps(
                {"machine": machine(), "rates": asdict(rates), "options": vars(arguments), "results": rows}, indent=2
            )
        )
        return
    print(f"{machine()}\n{rates}")
    print(f"median tokens per {arguments.clock} second (min .. max), the engine's with log-probabilities")
    for row in rows:
        cells = [
            f"{row[s]['median']:8.0f} ({row[s]['min']:.0f} .. {row[s]['max']:.0f})" for s in ("engine", "transformers")
        ]
        step = f", {row['step_milliseconds']:.2f} ms per step" if "step_milliseconds" in row else ""
        step += f", {row['replayed']:.0%} replayed" if "replayed" in row else ""
        print(f"{row['shape']:26} engine {cells[0]:28} transformers {cells[1]:28} ratio {row['ratio']:.2f}{step}")


if __name__ == "__main__":
    main()
