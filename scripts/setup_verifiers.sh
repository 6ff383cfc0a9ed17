#!/usr/bin/env bash
# Environment of verifiers, which areal/environment/adapters/verifiers_agent.py plays: its own folder, since it needs
# other versions of mcp and openai than anything else here. Its null harness calls uv, with its index. Idempotent; needs
# `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-verifiers
readonly WANT=(
    "verifiers==0.4.0"
)

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "500 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import verifiers.v1' "a package does not import"
say "ready: tests/areal/workflow/test_verifiers.py runs now"
