#!/usr/bin/env bash
# Environment with the real clients of every tracker (metrics.trackers), for the tests that run against them offline. Its
# own folder, because no default set-up needs five services' clients. Idempotent; needs `make setup` first (it reuses that
# environment's uv and cache).
#
#   bash scripts/setup_trackers.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv-trackers
readonly STAMP=$VENV/.ready
# mlflow-skinny is the client without the server: it logs to folders and to servers.
readonly WANT=(
    "mlflow-skinny==3.17.2"
    "prometheus-client==0.26.0"
    "swanlab==0.10.3"
    "tensorboard==2.21.0"
    "trackio==0.43.0"
    "wandb==0.31.0"
)

say() { printf 'setup_trackers: %s\n' "$*" >&2; }

[ -x .venv/bin/uv ] || { say "run 'make setup' first (.venv/bin/uv is missing)"; exit 2; }
if [ "$(cat "$STAMP" 2>/dev/null || true)" = "${WANT[*]}" ]; then
    say "$VENV is ready (${WANT[*]})"
    exit 0
fi

say "installing ${WANT[*]} into $VENV (500 MB)"
rm -f "$STAMP"
[ -x "$VENV/bin/python" ] || .venv/bin/uv venv -q --python .venv/bin/python "$VENV"
# uv does not read pip's settings.
setting() { .venv/bin/python -m pip config get "global.$1" 2>/dev/null || true; }
links="${PIP_FIND_LINKS:-$(setting find-links)}"
if [ -n "$links" ] && [ -z "${UV_FIND_LINKS:-}" ]; then
    UV_FIND_LINKS="$(tr -s ' \n' ',' <<<"$links" | sed 's/,$//')"
    export UV_FIND_LINKS
fi
indexes="${PIP_EXTRA_INDEX_URL:-$(setting extra-index-url)}"
if [ -n "$indexes" ] && [ -z "${UV_INDEX:-}" ]; then
    export UV_INDEX="$indexes" UV_INDEX_STRATEGY=unsafe-best-match # pip's rule: the best version from any index
fi
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
"$VENV/bin/python" -c 'import mlflow, prometheus_client, swanlab, tensorboard, trackio, wandb' >/dev/null 2>"$VENV/.import.log" || {
    say "a client does not import:"
    tail -5 "$VENV/.import.log" >&2
    exit 1
}
printf '%s\n' "${WANT[*]}" >"$STAMP"
say "ready: the tests of areal/infra/metrics/trackers run now"
