#!/usr/bin/env bash
# Environment of the other tools in benchmarks/upgrade_history.py --others: its own folder, outside the default set-up.
# basedpyright stands for pyright: the same analysis, but it brings its own Node as a wheel and downloads nothing later.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv-audit
readonly STAMP=$VENV/.ready
readonly WANT="griffe==2.4.1 basedpyright==1.40.2"

[ -x .venv/bin/uv ] || { echo "setup_audit_benchmark: run 'make setup' first (.venv/bin/uv is missing)" >&2; exit 2; }
if [ "$(cat "$STAMP" 2>/dev/null)" = "$WANT" ]; then
    echo "setup_audit_benchmark: $VENV is ready"
    exit 0
fi
echo "setup_audit_benchmark: installing $WANT into $VENV"
[ -x "$VENV/bin/python" ] || .venv/bin/uv venv -q --python .venv/bin/python "$VENV"
links="${PIP_FIND_LINKS:-$(python3 -m pip config get global.find-links 2>/dev/null || true)}"
if [ -n "$links" ]; then
    UV_FIND_LINKS="${UV_FIND_LINKS:-$(tr -s ' \n' ',' <<<"$links" | sed 's/,$//')}"
    export UV_FIND_LINKS
fi
# shellcheck disable=SC2086  # two requirements, one word each
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" $WANT
echo "$WANT" >"$STAMP"
echo "setup_audit_benchmark: done"
