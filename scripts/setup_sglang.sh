#!/usr/bin/env bash
# Environment of the SGLang inference servers: its own folder, because SGLang pins its own torch and transformers, and a
# server is a process of its own anyway. Idempotent; needs `make setup` first (it reuses that environment's uv and cache).
#
#   bash scripts/setup_sglang.sh           # for CPUs without an NVIDIA GPU, else for CUDA; AREAL_SGLANG=cpu|cuda decides
#
# There is no build for CPUs on the package index. What is installed for CPUs is the ordinary package without those it
# needs for CUDA (scripts/sglang_cpu/overrides.txt) and with stand-ins for two of them (scripts/sglang_cpu/stubs, which a .pth
# file of the environment points to). It is exact and slow: for tests, and for trying a configuration.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-sglang
readonly WANT="sglang==0.5.20"
readonly CPU=scripts/sglang_cpu
# A CUDA build of torch brings triton along; SGLang imports it everywhere.
readonly CPU_ALSO="triton==3.9.0"

if [ "$(uname -s)" != Linux ]; then say "SGLang runs on Linux only, this is $(uname -s)"; exit 2; fi
kind="${AREAL_SGLANG:-}"
if [ -z "$kind" ]; then
    if nvidia-smi -L >/dev/null 2>&1; then kind=cuda; else kind=cpu; fi
fi
case "$kind" in
cpu) install=(--overrides "$CPU/overrides.txt" "$WANT" "$CPU_ALSO") ;;
cuda) install=(--constraint scripts/locks/sglang.txt "$WANT") ;;
*) say "AREAL_SGLANG is '$kind', expected cpu or cuda"; exit 2 ;;
esac
# The folder is part of the stamp: the environment knows it, and where the stand-ins are.
stamp="$kind $({ pwd -P; cat scripts/setup_sglang.sh "$CPU/overrides.txt"; } | digest | cut -d' ' -f1)"

begin_environment $VENV "$stamp" "$WANT for $kind" "CPU: about a minute and 2.5 GB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${install[@]}"
stubs="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/areal_sglang_cpu.pth"
if [ "$kind" = cpu ]; then printf '%s\n' "$PWD/$CPU/stubs" >"$stubs"; else rm -f "$stubs"; fi
finish_environment $VENV "$stamp" 'import sglang.srt.entrypoints.http_server' "SGLang does not import"
say "ready: the tests of areal/engine/sglang run now"
