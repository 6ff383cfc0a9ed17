#!/usr/bin/env bash
# Environment of the TRL baseline in benchmarks/grpo_vs_trl.py: its own folder, because its pins differ from ours.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-trl
readonly WANT="trl==1.16.0"

begin_environment $VENV "$WANT" "$WANT"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" -c constraints.txt "$WANT" torch pillow
finish_environment $VENV "$WANT" 'import trl' "TRL does not import"
say "done"
