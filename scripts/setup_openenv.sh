#!/usr/bin/env bash
# Environment of openenv, which areal/environment/adapters/openenv.py speaks to: its own folder, since it needs another
# version of mcp than scripts/setup_environments.sh installs. Idempotent; needs `make setup` first (it reuses that
# environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-openenv
# pydantic: what reading areal's records needs; areal itself is found beside the scripts.
readonly WANT=(
    "openenv==0.10.0"
    "pydantic>=2"
    "pyyaml>=6"
)

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "400 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import openenv' "a package does not import"
say "ready: the tests of areal/environment/adapters/openenv.py run now"
