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

readonly VENV=.venv-sglang
readonly STAMP=$VENV/.ready
readonly WANT="sglang==0.5.20"
readonly CPU=scripts/sglang_cpu
# A CUDA build of torch brings triton along; SGLang imports it everywhere.
readonly CPU_ALSO="triton==3.9.0"

say() { printf 'setup_sglang: %s\n' "$*" >&2; }

digest() {
    if command -v sha256sum >/dev/null; then sha256sum; elif command -v shasum >/dev/null; then shasum -a 256; else cksum; fi
}

[ -x .venv/bin/uv ] || { say "run 'make setup' first (.venv/bin/uv is missing)"; exit 2; }
if [ "$(uname -s)" != Linux ]; then say "SGLang runs on Linux only, this is $(uname -s)"; exit 2; fi
kind="${AREAL_SGLANG:-}"
if [ -z "$kind" ]; then
    if nvidia-smi -L >/dev/null 2>&1; then kind=cuda; else kind=cpu; fi
fi
case "$kind" in
cpu) install=(--overrides "$CPU/overrides.txt" "$WANT" "$CPU_ALSO") ;;
cuda) install=("$WANT") ;;
*) say "AREAL_SGLANG is '$kind', expected cpu or cuda"; exit 2 ;;
esac
# The folder is part of the stamp: the environment knows it, and where the stand-ins are.
stamp="$kind $({ pwd -P; cat scripts/setup_sglang.sh "$CPU/overrides.txt"; } | digest | cut -d' ' -f1)"
if [ "$(cat "$STAMP" 2>/dev/null || true)" = "$stamp" ]; then
    say "$VENV is ready ($WANT for $kind)"
    exit 0
fi

say "installing $WANT for $kind into $VENV (CPU: about a minute and 2.5 GB)"
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
# Without bytecode each of a server's processes would parse everything at every start.
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${install[@]}"
stubs="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/areal_sglang_cpu.pth"
if [ "$kind" = cpu ]; then printf '%s\n' "$PWD/$CPU/stubs" >"$stubs"; else rm -f "$stubs"; fi
HF_HUB_OFFLINE=1 "$VENV/bin/python" -c 'import sglang.srt.entrypoints.http_server' >/dev/null 2>"$VENV/.import.log" || {
    say "SGLang does not import:"
    tail -5 "$VENV/.import.log" >&2
    exit 1
}
printf '%s\n' "$stamp" >"$STAMP"
say "ready: the tests of areal/engine/sglang run now"
