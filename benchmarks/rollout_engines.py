"""The same generation by the embedded engine, by a vLLM server, and by TRL's GRPOTrainer: tokens per second, ratios.

    bash scripts/setup_vllm.sh; bash scripts/setup_trl.sh
    .venv/bin/python benchmarks/rollout_engines.py [--size 25M] [--rounds 3] [--json]

Compared, in turn, on equal prompts (new ones in every round, so that no cache has them), with temperature 1, float32
(bfloat16 on a GPU) and the same number of cores for each side:

embedded  the engine in the trainer's process (areal/engine/embedded)
vllm      a vLLM server on the same cores through `ServerEngine`, HTTP and its client included
trl       what GRPOTrainer of TRL does between batch and completions: padding, `generate`, cutting at the end

equal, batch N   every prompt and every answer has the same length: the best case of a static batch
grpo             groups of 8 samples of one prompt, prompts of different lengths, answers that end at random

Not the same on all sides: embedded and vllm also return the exact log-probability of every token, which RL needs; TRL
computes them later, in a forward pass that is not measured here. Whole steps are compared by grpo_vs_trl.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    ROOT,
    TRL_PYTHON,
    VLLM_PYTHON,
    BenchmarkReport,
    add_device_argument,
    add_output_arguments,
    alternate,
    device_dtype,
    markdown,
    processors,
    progress,
    require,
    require_device,
    set_thread_environment,
    shown,
)
from embedded_engine import CONTEXT, SIZES, EngineSide, make_prompts, model_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP = 8
# The tokenizer's end and four more of 258 ids: under near-uniform predictions, answers have about 52 tokens.
STOP_IDS = (0, 1, 2, 3, 257)
VOCABULARY = {"vocab_size": 258, "eos_token_id": 257, "pad_token_id": 256}


class TRLSide:
    """GRPOTrainer in a process of its own environment."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        path = folder / "trl.json"
        path.write_text(json.dumps(job))
        self._log = (folder / "trl.log").open("w+")
        self._process = subprocess.Popen(
            [str(TRL_PYTHON), str(ROOT / "benchmarks/trl_generation.py"), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=folder,
        )
        self._answer()

    def run(self, work: str, prompts: Sequence[Sequence[int]]) -> int:
        """Tokens produced."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": work, "prompts": prompts}) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"trl failed with exit code {self._process.wait()}:\n{self._log.read()[-3000:]}")
        return line


def kinds_of_work(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Name to batch (samples), group, longest answer, ends, and range of prompt lengths."""
    equal = {
        f"equal, batch {batch}": {
            "batch": batch,
            "group": 1,
            "new_tokens": options.new_tokens,
            "stops": [],
            "prompt": [options.prompt, options.prompt],
        }
        for batch in options.batch
    }
    grpo = {
        f"grpo, {options.groups} groups of {GROUP}": {
            "batch": options.groups * GROUP,
            "group": GROUP,
            "new_tokens": 2 * options.new_tokens,
            "stops": list(STOP_IDS),
            "prompt": [options.prompt // 2, options.prompt * 3 // 2],
        }
    }
    return equal | (grpo if options.groups else {})


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures per kind of work."""
    import torch
    from servers import vllm_engine

    from areal.dataset.encoding import load_tokenizer
    from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig
    from areal.engine.embedded.engine import EmbeddedEngine
    from areal.engine.train.engine import TrainingEngine
    from areal.models import from_config, save_pretrained

    torch.set_num_threads(options.threads)
    work = kinds_of_work(options)
    dtype, on_cuda = device_dtype(options.device), options.device == "cuda"
    vocabulary = VOCABULARY if "vocab_size" not in SIZES[options.size] else VOCABULARY | SIZES[options.size]
    model: Any = from_config(model_config(options.size) | vocabulary, dtype=getattr(torch, dtype), seed=1)
    cores = ",".join(map(str, processors()[: options.threads]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_pretrained(model, folder / "model")
        load_tokenizer("bytes:").save_pretrained(folder / "model")
        job = {"model": str(folder / "model"), "threads": options.threads, "output_dir": str(folder / "out")}
        job |= {"device": options.device, "dtype": dtype}
        progress("rollout_engines: starting vLLM and TRL")
        most = max(each["batch"] for each in work.values())
        actor = TrainingEngine(model, config=TrainEngineConfig(device=options.device, dtype=dtype))
        vllm = vllm_engine(
            actor, folder, context=CONTEXT, cores=(cores,), on_cuda=on_cuda, dtype=dtype, max_concurrent=most
        )
        settings = {"max_seq_len": CONTEXT, "max_batch_size": most, "num_threads": options.threads}
        embedded = EmbeddedEngine(model, config=EmbeddedEngineConfig(**settings), eos_token_id=None)
        trl = None
        try:
            trl = TRLSide(job | {"work": work}, folder)
            sides = {"embedded": _ours(embedded, work), "vllm": _ours(vllm, work), "trl": trl.run}
            return [_compare(name, each, sides, options) for name, each in work.items()]
        finally:
            embedded.close()
            vllm.close()
            if trl is not None:
                trl.close()


def _ours(engine: Any, work: dict[str, dict[str, Any]]) -> Callable[[str, list[list[int]]], int]:
    side = EngineSide(engine)

    def run(name: str, prompts: list[list[int]]) -> int:
        each = work[name]
        return side.run(prompts, group=each["group"], new_tokens=each["new_tokens"], stops=tuple(each["stops"]))

    return run


def _compare(
    name: str, work: dict[str, Any], sides: dict[str, Callable[..., int]], options: argparse.Namespace
) -> dict[str, Any]:
    progress(f"rollout_engines: {name}")

    def one(run: Callable[..., int]) -> Callable[[], int]:
        rounds = iter(range(options.rounds + 1))

        def measured() -> int:
            count, (low, high) = work["batch"] // work["group"], work["prompt"]
            return run(name, make_prompts(count, (low, high), seed=next(rounds)))

        return measured

    rates = alternate({side: one(run) for side, run in sides.items()}, rounds=options.rounds)
    ratios = {side: rates[side]["median"] / rates["trl"]["median"] for side in rates}
    return {"work": name, "tokens_per_second": rates, "against_trl": ratios}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Tokens per second and ratios."""
    sides = list(rows[0]["tokens_per_second"])
    header = ["work", *(f"{side}, tokens/s" for side in sides), "embedded / trl", "vllm / trl"]
    return markdown(
        header,
        [
            [
                row["work"],
                *(shown(row["tokens_per_second"][side], ".0f") for side in sides),
                *(f"{row['against_trl'][side]:.2f}x" for side in ("embedded", "vllm")),
            ]
            for row in rows
        ],
    )


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="0.8M", help="model, by parameters (0.8M)")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32, 128], help="batch sizes of equal lengths")
    parser.add_argument("--groups", type=int, default=16, help="prompts of the grpo work; 0 skips it (16)")
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens; grpo: 1/2 to 3/2 of it (64)")
    parser.add_argument("--new-tokens", type=int, default=64, help="new tokens; grpo: at most twice that (64)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count, after one that does not (3)")
    parser.add_argument("--threads", type=int, default=len(processors()), help="cores of each side (all)")
    add_device_argument(parser)
    add_output_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and report."""
    options = parse()
    require("rollout_engines", VLLM_PYTHON, TRL_PYTHON)
    set_thread_environment(options.threads)
    require_device("rollout_engines", options.device)
    report = BenchmarkReport("rollout_engines", options)
    rows = measure(options)
    report.finish({"results": rows}, table(rows))


if __name__ == "__main__":
    main()
