#!/usr/bin/env bash
# Environment with the real clients of every tracker (metrics.trackers), for the tests that run against them offline. Its
# own folder, because no default set-up needs five services' clients. Idempotent; needs `make setup` first (it reuses that
# environment's uv and cache).
#
#   bash scripts/setup_trackers.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-trackers
# mlflow-skinny is the client without the server: it logs to folders and to servers.
readonly WANT=(
    "mlflow-skinny==3.17.2"
    "prometheus-client==0.26.0"
    "swanlab==0.10.3"
    "tensorboard==2.21.0"
    "trackio==0.43.0"
    "wandb==0.31.0"
)

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "500 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import mlflow, prometheus_client, swanlab, tensorboard, trackio, wandb' \
    "a client does not import"
say "ready: the tests of areal/infra/metrics/trackers run now"
