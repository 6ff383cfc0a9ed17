#!/usr/bin/env bash
# Environment of the TRL baseline in benchmarks/grpo_vs_trl.py: its own folder, because its pins differ from ours.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv-trl
readonly STAMP=$VENV/.ready
readonly WANT="trl==1.16.0"

[ -x .venv/bin/uv ] || { echo "setup_trl: run 'make setup' first (.venv/bin/uv is missing)" >&2; exit 2; }
if [ "$(cat "$STAMP" 2>/dev/null)" = "$WANT" ]; then
    echo "setup_trl: $VENV is ready"
    exit 0
fi
echo "setup_trl: installing $WANT into $VENV"
[ -x "$VENV/bin/python" ] || .venv/bin/uv venv -q --python .venv/bin/python "$VENV"
links="${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}"
if [ -n "$links" ]; then
    UV_FIND_LINKS="${UV_FIND_LINKS:-$(tr -s ' \n' ',' <<<"$links" | sed 's/,$//')}"
    export UV_FIND_LINKS
fi
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" -c constraints.txt "$WANT" torch
echo "$WANT" >"$STAMP"
echo "setup_trl: done"
