"""What the audit sees of this repository's own adapters, against a list that was made by reading them.

python -m pytest tests/tooling/upgrade/interfaces/test_own_adapters.py -q
"""

from pathlib import Path

import pytest

from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.sources.folder import memory_release

ROOT = Path(__file__).parents[4]
SCOPE = ("areal/engine", "areal/infra/supervisor", "areal/trainer", "areal/utils", "scripts")

VLLM_FLAGS = [
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--load-format",
    "--dtype",
    "--max-model-len",
    "--max-num-seqs",
    "--limit-mm-per-prompt",
    "--tensor-parallel-size",
    "--logprobs-mode",
    "--worker-extension-cls",
    "--uvicorn-log-level",
    "--disable-log-stats",
    "--enable-lora",
    "--enable-return-routed-experts",
    "--enable-scale-out",
    "--enable-sleep-mode",
    "--quantization",
    "--skip-tokenizer-init",
    "--enforce-eager",
    "--no-enable-prefix-caching",
    "--no-enable-chunked-prefill",
    "--gpu-memory-utilization",
    "--max-cpu-loras",
    "--max-lora-rank",
    "--max-loras",
    "--no-mm-device-do-normalize",
]
VLLM_ROUTES = {
    "/abort_requests": ["adapter.py"],
    "/collective_rpc": ["adapter.py", "identity.py"],
    "/inference/v1/generate": ["adapter.py"],
    "/pause": ["adapter.py"],
    "/reset_encoder_cache": ["adapter.py"],
    "/reset_prefix_cache": ["adapter.py"],
    "/resume": ["adapter.py"],
    "/update_weight_version": ["adapter.py"],
    "/v1/completions": ["adapter.py", "teacher.py"],
    "/version": ["adapter.py"],
}
VLLM_VARIABLES = [
    "VLLM_BATCH_INVARIANT",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_NO_USAGE_STATS",
    "VLLM_SERVER_DEV_MODE",
]
VLLM_PLUGINS = [
    "areal.engine.server.adapters",
    "areal.engine.server.changes",
    "areal.engine.server.receiver",
    "areal.engine.vllm.worker",
    "areal.utils.process_groups",
    "areal.utils.tensors",
]
SGLANG_PLUGINS = [name.replace("vllm", "sglang") for name in VLLM_PLUGINS]
SGLANG_FLAGS = [
    "--custom-weight-loader",
    "--model-path",
    "--load-format",
    "--host",
    "--port",
    "--dtype",
    "--context-length",
    "--max-running-requests",
    "--tp-size",
    "--mem-fraction-static",
    "--enable-memory-saver",
    "--stream-interval",
    "--incremental-streaming-output",
    "--skip-tokenizer-init",
    "--log-level",
    "--attention-backend",
    "--device",
    "--sampling-backend",
    "--disable-overlap-schedule",
    "--max-total-tokens",
    "--enable-deterministic-inference",
    "--disable-radix-cache",
    "--enable-lora",
    "--enable-return-routed-experts",
    "--lora-target-modules",
    "--max-loaded-loras",
    "--max-lora-rank",
    "--max-loras-per-batch",
]
SGLANG_ROUTES = [
    "/abort_request",
    "/continue_generation",
    "/generate",
    "/get_server_info",
    "/pause_generation",
    "/server_info",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
]
SGLANG_VARIABLES = [
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
    "SGLANG_RETURN_ORIGINAL_LOGPROB",
]
HEALTH = [
    "areal/engine/server/client.py",
    "areal/engine/server/members.py",
    "areal/engine/server/updates.py",
    "areal/trainer/inference.py",
]
"""The check of a server's health is shared: its users call the helper, which has the route as a default."""

EXPECTED = {
    *(("vllm", "flag", name, "areal/engine/vllm/launch.py") for name in VLLM_FLAGS),
    *(("vllm", "route", name, f"areal/engine/vllm/{file}") for name, row in VLLM_ROUTES.items() for file in row),
    *(("vllm", "variable", name, "areal/engine/vllm/launch.py") for name in VLLM_VARIABLES),
    *(("vllm", "plugin", name, f"{name.replace('.', '/')}.py") for name in VLLM_PLUGINS),
    *(("sglang", "plugin", name, f"{name.replace('.', '/')}.py") for name in SGLANG_PLUGINS),
    *(("sglang", "flag", name, "areal/engine/sglang/launch.py") for name in SGLANG_FLAGS),
    *(("sglang", "route", name, "areal/engine/sglang/adapter.py") for name in SGLANG_ROUTES),
    ("sglang", "route", "/generate", "areal/engine/sglang/teacher.py"),
    *(("sglang", "variable", name, "areal/engine/sglang/launch.py") for name in SGLANG_VARIABLES),
    *((package, "route", "/health", file) for package in ("vllm", "sglang") for file in HEALTH),
}
PACKAGES = {
    "vllm": ("vllm.entrypoints.openai.api_server", VLLM_FLAGS, [*VLLM_ROUTES, "/health"], VLLM_VARIABLES),
    "sglang": ("sglang.launch_server", SGLANG_FLAGS, [*SGLANG_ROUTES, "/health"], SGLANG_VARIABLES),
}
READ_ONLY = {"/version", "/health", "/server_info", "/get_server_info"}


def server(package, version, flags, routes):
    """A release that has these interfaces and nothing else."""
    program, _, _, variables = PACKAGES[package]
    parser = ["import argparse", "parser = argparse.ArgumentParser()"]
    for flag in flags:
        name, how = (f"--{flag[5:]}", ", action=argparse.BooleanOptionalAction") if flag[:5] == "--no-" else (flag, "")
        parser.append(f"parser.add_argument('{name}'{how})")
    served = ["from fastapi import FastAPI", "app = FastAPI()"]
    for number, path in enumerate(routes):
        served.append(f"@app.{'get' if path in READ_ONLY else 'post'}('{path}')\nasync def f{number}(): ...")
    reads = ["import os", *(f"os.environ.get('{name}')" for name in variables)]
    texts = {program: [*parser, "parser.parse_args()"], f"{package}.http": served, f"{package}.envs": reads}
    files = {f"{dotted.replace('.', '/')}.py": "\n".join(lines) + "\n" for dotted, lines in texts.items()}
    packages = {f"{name.rpartition('/')[0]}/__init__.py": "" for name in files}
    return memory_release({**packages, **files}, package, version)


def judged(package, new_flags=None, new_routes=None):
    _, flags, routes, _ = PACKAGES[package]
    old, new = server(package, "2", flags, routes), server(package, "3", new_flags or flags, new_routes or routes)
    rivals = [name for name in PACKAGES if name != package]
    return judge_interfaces(ROOT, old, new, package, scope=SCOPE, rivals=rivals)


@pytest.fixture(scope="module")
def same():
    return {package: judged(package) for package in PACKAGES}


@pytest.mark.exhaustive
def test_exactly_what_reading_the_adapters_gives_is_seen(same):
    found = {
        (package, str(use.kind), use.name.rpartition(" ")[2], use.path)
        for package, result in same.items()
        for use in result.uses
    }
    assert found - EXPECTED == set()
    assert EXPECTED - found == set()
    assert all(use.known for result in same.values() for use in result.uses)


@pytest.mark.exhaustive
def test_what_a_configuration_adds_is_named_as_not_followed(same):
    for package, result in same.items():
        assert {(each.path, each.what.partition(":")[0]) for each in result.unfollowed} == {
            (f"areal/engine/{package}/launch.py", "config.extra_arguments")
        }


@pytest.mark.exhaustive
def test_equal_releases_give_no_findings(same):
    assert [finding for result in same.values() for finding in result.findings] == []


def test_a_flag_that_is_added_in_a_branch_and_a_route_from_a_constant_break():
    flags = [flag for flag in VLLM_FLAGS if flag != "--enable-scale-out"]
    routes = [path for path in (*VLLM_ROUTES, "/health") if path != "/inference/v1/generate"]
    findings = judged("vllm", flags, routes).findings
    lines = (ROOT / "areal/engine/vllm/launch.py").read_text(encoding="utf-8").splitlines()
    (flag,) = [each for each in findings if each.kind == "cli-flag"]
    assert (flag.path, flag.severity) == ("areal/engine/vllm/launch.py", "breaking")
    assert "--enable-scale-out" in lines[flag.line - 1]
    assert {each.path for each in findings if each.kind == "http-route"} == {"areal/engine/vllm/adapter.py"}
