#!/usr/bin/env bash
# Environment of the Megatron engine (`archon.engine: megatron`): its own folder, because megatron-core is an optional
# extra that no default set-up needs. It has this package, megatron-core, and mbridge, which only tests ask: it knows by
# itself where Hugging Face keeps each weight. Idempotent; needs `make setup` first (it reuses that environment's uv and
# cache).
#
#   bash scripts/setup_megatron.sh         # a CPU build of torch without an NVIDIA GPU, else the CUDA build;
#                                          # AREAL_MEGATRON=cpu|cuda decides
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-megatron
readonly ENGINE_WANT="megatron-core==0.16.1"
readonly ORACLE_WANT="mbridge==0.15.1"
readonly EINOPS_WANT="einops==0.8.2" # mbridge imports it and does not ask for it

kind="${AREAL_MEGATRON:-}"
if [ -z "$kind" ]; then
    if nvidia-smi -L >/dev/null 2>&1; then kind=cuda; else kind=cpu; fi
fi
case "$kind" in
cpu) backend=(--torch-backend cpu) ;;
cuda) backend=() ;;
*) say "AREAL_MEGATRON is '$kind', expected cpu or cuda"; exit 2 ;;
esac
# The folder is part of the stamp: the environment knows where this package is.
stamp="$kind $({ pwd -P; cat scripts/setup_megatron.sh pyproject.toml constraints.txt; } | digest | cut -d' ' -f1)"

begin_environment $VENV "$stamp" "$ENGINE_WANT and $ORACLE_WANT for $kind" "CPU: about a minute and 1.5 GB"
# Where pip's own settings offer a CPU build, the index is not asked for one.
if [ "$kind" = cpu ] && .venv/bin/uv pip install --dry-run --no-deps --python .venv/bin/python --reinstall-package torch \
    -c constraints.txt torch 2>&1 | grep -q '+cpu'; then
    backend=()
fi
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" -c constraints.txt \
    ${backend[@]+"${backend[@]}"} -e '.[dev]' "$ENGINE_WANT" "$ORACLE_WANT" "$EINOPS_WANT"
finish_environment $VENV "$stamp" 'import megatron.core, mbridge' "megatron-core does not import"
say "ready: the tests of areal/engine/megatron run now"
