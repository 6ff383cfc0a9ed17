#!/usr/bin/env bash
# Environment of the TRL baseline in benchmarks/grpo_vs_trl.py: its own folder, because its pins differ from ours.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
#
#   bash scripts/setup_trl.sh              # .venv-trl
#   bash scripts/setup_trl.sh --vllm       # .venv-trl-vllm, with the vLLM that TRL supports, for GPUs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly WANT="trl==1.16.0"
readonly WITH_VLLM="trl[vllm]==1.16.0"

case "${1:-}" in
"")
    VENV=.venv-trl
    begin_environment $VENV "$WANT" "$WANT"
    .venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
    .venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" -c constraints.txt "$WANT" torch pillow
    finish_environment $VENV "$WANT" 'import trl' "TRL does not import"
    ;;
--vllm)
    VLLM_VENV=.venv-trl-vllm
    begin_environment $VLLM_VENV "$WITH_VLLM" "$WITH_VLLM" "about 10 GB"
    .venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VLLM_VENV"
    # Without our constraints: this vLLM has a torch of its own.
    .venv/bin/uv pip install -q --compile-bytecode --python "$VLLM_VENV/bin/python" "$WITH_VLLM" pillow
    finish_environment $VLLM_VENV "$WITH_VLLM" 'import trl, vllm' "TRL or vLLM does not import"
    ;;
*) say "expected no argument or --vllm, got '$1'"; exit 2 ;;
esac
say "done"
