#!/usr/bin/env bash
# Environment of the packages that areal/environment/adapters speak to: its own folder, since their versions need not fit
# ours. Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-environments
# pydantic: what reading areal's records needs; areal itself is found beside the scripts.
readonly WANT=(
    "gymnasium[toy-text]==1.4.0"
    "mcp==2.3.0"
    "pydantic>=2"
    "pyyaml>=6"
    "textarena==0.7.4"
)

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "600 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import gymnasium, mcp, textarena' "a package does not import"
say "ready: the tests of areal/environment/adapters run now"
