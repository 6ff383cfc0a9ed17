"""Serve a model to agents: OpenAI chat completions and responses, Anthropic messages, every sampled token kept.

examples:
  areal gateway models/Qwen2.5-0.5B-Instruct --port 8080 --output sessions.jsonl
  areal gateway runs/tools/grpo --ready-file gateway.json
  areal gateway models/Qwen2.5-0.5B-Instruct --dry-run --json

TARGET is a folder with config.json (a checkpoint), a run directory (its final model), or org/name@revision of the hub.
One session is open from the start; its address and key are printed. The admin key opens further ones (POST
/rl/sessions), scores them (POST /rl/sessions/NAME/reward) and closes them (DELETE /rl/sessions/NAME). What sessions did
is appended to --output when they end, token by token as training would see it. Ctrl-C and SIGTERM end it. Nothing is
trained: in a run the same gateway is `workflow: agent`; see docs/agents.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal gateway`."""
    parser.add_argument("target", metavar="TARGET", help="checkpoint folder, run directory, or org/name@revision")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to listen at (default: a free one)")
    parser.add_argument("--allow-remote", action="store_true", help="let other machines in; needed for another --host")
    parser.add_argument("--history", choices=("keep", "template"), default="keep", help="how earlier answers are shown")
    parser.add_argument("--enable-thinking", action="store_true", help="handed to the chat template")
    parser.add_argument("--max-seq-len", type=int, default=8192, metavar="N", help="tokens of a conversation (8192)")
    parser.add_argument("--max-new-tokens", type=int, default=1024, metavar="N", help="tokens of an answer (1024)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="X", help="of sampling; 0 is greedy (1.0)")
    parser.add_argument("--max-batch-size", type=int, default=16, metavar="N", help="answers generated at once (16)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (float32)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda (cpu)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sampling (0)")
    parser.add_argument(
        "--reward-deadline", type=float, default=0.0, metavar="S", help="seconds for rewards after a session's end (0)"
    )
    parser.add_argument("--dump-folder", default="", metavar="DIR", help="gets the content of all requests")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSONL file for what sessions did")
    parser.add_argument("--ready-file", type=Path, metavar="FILE", help="gets address and keys as JSON, for you alone")
    parser.add_argument("--dry-run", action="store_true", help="say what would be served, and load no weights")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Serve until the end, or say what would be served."""
    from areal.api import GenerationConfig
    from areal.gateway.config import GatewayConfig, SessionLimits
    from areal.trainer.gateway import GatewayPlan, describe, find_model, serve

    greedy = arguments.temperature == 0
    plan = GatewayPlan(
        model=find_model(arguments.target),
        config=GatewayConfig(
            host=arguments.host,
            port=arguments.port,
            allow_remote=arguments.allow_remote,
            history=arguments.history,
            enable_thinking=arguments.enable_thinking,
            reward_deadline=arguments.reward_deadline,
            dump_folder=arguments.dump_folder,
            limits=SessionLimits(
                max_requests=1_000_000, max_answer_tokens=1_000_000_000, max_roots=100_000,
                idle_seconds=1e9, total_seconds=1e9,
            ),
        ),
        gconfig=GenerationConfig(
            max_new_tokens=arguments.max_new_tokens,
            temperature=1.0 if greedy else arguments.temperature,
            greedy=greedy,
        ),
        max_seq_len=arguments.max_seq_len,
        max_batch_size=arguments.max_batch_size,
        dtype=arguments.dtype,
        device=arguments.device,
        seed=arguments.seed,
        output=arguments.output,
        ready_file=arguments.ready_file,
    )  # fmt: skip
    if arguments.dry_run:
        facts = describe(plan)
        shapes = ", ".join(f"{name}: {kind}" for name, kind in facts["template"].items())
        text = (
            f"would serve {facts['model']} with {facts['max_seq_len']} tokens of context; its chat template: {shapes}"
        )
        return CommandReport(text=text, data=facts)
    from areal.infra.checkpoint.run_control import StopRequest

    with StopRequest() as stop:
        facts = serve(plan, stop, _announce)
    text = f"{facts['sessions']} sessions with {facts['answers']} answers"
    return CommandReport(text=text, data=facts, exit_code=stop.exit_code)


def _announce(facts: dict[str, Any]) -> None:
    sys.stderr.write(
        f"serving at {facts['address']}; a session is open:\n"
        f"  export OPENAI_BASE_URL={facts['openai_base_url']} OPENAI_API_KEY={facts['key']}\n"
        f"  export ANTHROPIC_BASE_URL={facts['anthropic_base_url']} ANTHROPIC_AUTH_TOKEN={facts['key']}\n"
        f"admin key, for further sessions: {facts['admin_key']}\n"
    )
    sys.stderr.flush()
