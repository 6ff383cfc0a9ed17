#!/usr/bin/env bash
# Every gate of this repository, each with its seconds. All run even when one fails; the failed ones are named at the end.
#
#   bash scripts/check.sh            # everything; needs scripts/setup.sh once
#   bash scripts/check.sh --fast     # seconds: style, layers and the architecture test
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

fast=0
case "${1:-}" in
"") ;;
--fast) fast=1 ;;
*)
    echo "check: unknown argument '$1'; the only one is --fast" >&2
    exit 2
    ;;
esac

bin=.venv/bin
if [ ! -f .venv/.areal-ready ]; then
    echo "check: .venv is not ready; run 'bash scripts/setup.sh' (or 'make setup') first" >&2
    exit 2
fi

# Several processes share few cores: threads that spin while they wait can slow tests down forty times.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

failed=()

gate() { # gate NAME COMMAND...: the output is shown only when the command fails
    local name=$1 log started=$SECONDS status=0
    shift
    log=$(mktemp)
    "$@" >"$log" 2>&1 || status=$?
    if [ $status = 0 ]; then
        printf 'ok    %-14s %3d s\n' "$name" $((SECONDS - started))
    else
        printf 'FAIL  %-14s %3d s   %s\n' "$name" $((SECONDS - started)) "$*"
        cat "$log"
        failed+=("$name")
    fi
    rm -f "$log"
}

gate ruff-check $bin/ruff check .
gate ruff-format $bin/ruff format --check .
gate import-linter $bin/lint-imports
# The newest message only: a checkout may have no more of the history.
gate commit-message $bin/areal-commit check HEAD
gate harness-sync $bin/areal-harness sync --check
if [ $fast = 0 ]; then
    gate mypy $bin/mypy
    if [ -f scripts/generate_reference.py ]; then gate reference $bin/python scripts/generate_reference.py --check; fi
    gate harness-check $bin/areal-harness check
    gate command-pages $bin/python scripts/generate_command_pages.py --check
    gate checklists $bin/areal-audit --check
fi

# Last, and not through `gate`: its closing line with the counts is the last line of a run that passes.
if [ $fast = 1 ]; then tests=(tests/test_architecture.py -q); else tests=(-q -n 2 --durations=10 --durations-min=3); fi
$bin/python -m pytest "${tests[@]}" || failed+=(pytest)

if [ ${#failed[@]} -gt 0 ]; then
    echo "check: failed gates: ${failed[*]}" >&2
    exit 1
fi
