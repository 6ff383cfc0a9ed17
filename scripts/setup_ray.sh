#!/usr/bin/env bash
# Environment with Ray (job.backend ray), for the tests that place jobs on a real cluster of several nodes. Its own folder,
# because nothing but placing jobs needs it; it sees the packages of .venv, so that what Ray starts can train. Idempotent;
# needs `make setup` first (it reuses that environment's uv and cache).
#
#   bash scripts/setup_ray.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-ray
readonly WANT="ray==2.60.0"

begin_environment $VENV "$WANT" "$WANT" "300 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "$WANT"
shared="$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
own="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
# A plain line would not read the .pth files there, one of which is areal itself.
printf 'import site; site.addsitedir(%s)\n' "'$shared'" >"$own/areal_environment.pth"
finish_environment $VENV "$WANT" 'import ray, areal, yaml' "Ray does not import"
say "ready: the tests of areal/infra/jobs run on Ray now"
