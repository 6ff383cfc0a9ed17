#!/usr/bin/env bash
# Environment of the other tools in benchmarks/upgrade_history.py --others: its own folder, outside the default set-up.
# basedpyright stands for pyright: the same analysis, but it brings its own Node as a wheel and downloads nothing later.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-audit
readonly WANT=("griffe==2.4.1" "basedpyright==1.40.2")

begin_environment $VENV "${WANT[*]}" "${WANT[*]}"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import basedpyright, griffe' "a tool does not import"
say "done"
