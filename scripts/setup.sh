#!/usr/bin/env bash
# Makes .venv ready for work: Python, every dependency, this package in editable mode. Run it as often as you like; when
# nothing changed it ends after a few milliseconds.
#
#   bash scripts/setup.sh                  # PYTHON=python3.12 picks the interpreter of a new .venv
#
# Which build of torch: 1. a CPU wheel that pip's own settings offer (find-links), 2. on Linux without an NVIDIA GPU the
# build from PyTorch's CPU index, 3. whatever the package index has (several GB with CUDA on Linux).
# uv does the installing, and gets the index settings pip has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

VENV=.venv
STAMP=$VENV/.areal-ready

# The folder is part of the stamp: console scripts carry its absolute path, so a moved tree must be installed again.
want="$({ pwd -P; cat pyproject.toml constraints.txt scripts/setup.sh scripts/environment.sh; } | digest | cut -d' ' -f1)"
if [ -x $VENV/bin/python ] && [ "$(cat $STAMP 2>/dev/null || true)" = "$want" ]; then exit 0; fi

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python python3.11 python3.12 python3.13 python3.14; do
        # ensurepip is missing where a distribution splits it off; such an interpreter cannot make a virtual environment.
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return
        fi
        if [ "$candidate" = "${PYTHON:-}" ]; then break; fi
    done
    say "no usable Python found: Python 3.11 or newer with the venv module is needed."
    say "Install it (Debian/Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.12),"
    say "or name one: PYTHON=/path/to/python3.12 bash scripts/setup.sh"
    exit 1
}

# True when pip's settings or the environment make torch resolve to what the arguments ask for; installs nothing.
torch_plan() { uv_pip --dry-run --no-deps "$@" torch 2>&1; }

uv_pip() { $VENV/bin/uv pip install --python $VENV/bin/python -c constraints.txt "$@"; }

started=$SECONDS
if [ ! -x $VENV/bin/python ] || ! $VENV/bin/python -c 'import pip' 2>/dev/null; then
    python="$(find_python)"
    say "creating $VENV with $("$python" --version) ($python)"
    "$python" -m venv --clear $VENV
fi
if [ ! -x $VENV/bin/uv ]; then
    say "installing uv"
    $VENV/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt uv
fi
export_pip_settings $VENV/bin/python

backend=()
plan="$(torch_plan || true)"
case "$plan" in
*"no changes"*) say "torch is already there" ;;
*+cpu*) say "torch: CPU wheel found through pip's settings" ;;
*)
    if [ "$(uname -s)" != Linux ]; then
        say "torch: the package index's build for $(uname -s)"
    elif nvidia-smi -L >/dev/null 2>&1; then
        say "torch: the CUDA build, since there is an NVIDIA GPU"
    elif torch_plan --torch-backend cpu | grep -q '+cpu'; then
        say "torch: CPU build from PyTorch's index"
        backend=(--torch-backend cpu)
    else
        say "torch: PyTorch's CPU index cannot be reached; taking the package index's build (several GB)"
    fi
    ;;
esac

say "installing dependencies (constraints.txt) and areal in editable mode"
quiet=(-q)
if [ -t 2 ]; then quiet=(); fi # a terminal gets uv's progress bars
# Bytecode is compiled once here: where PYTHONDONTWRITEBYTECODE is set, every start would parse everything again.
uv_pip ${quiet[@]+"${quiet[@]}"} --compile-bytecode ${backend[@]+"${backend[@]}"} -e '.[dev]'
$VENV/bin/python -m compileall -q areal tooling

printf '%s\n' "$want" >$STAMP.$$
mv $STAMP.$$ $STAMP
say "ready after $((SECONDS - started)) s: source $VENV/bin/activate, or call $VENV/bin/areal"
