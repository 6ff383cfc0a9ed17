#!/usr/bin/env bash
# Every gate of this repository, each with its seconds. All run even when one fails; the failed ones are named at the end.
#
#   bash scripts/check.sh            # everything but exhaustive tests; needs scripts/setup.sh once
#   bash scripts/check.sh --all      # those as well: every kill, every split, every client call; twice as long
#   bash scripts/check.sh --fast     # seconds: style, layers and the architecture test
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

fast=0 all=0
case "${1:-}" in
"") ;;
--fast) fast=1 ;;
--all) all=1 ;;
*)
    echo "check: unknown argument '$1'; there are --fast and --all" >&2
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

# What a shallow checkout has of the history is judged, and the rest is named. AREAL_BASE is what a branch is compared
# with, where the build server knows it: "origin/main".
since=$(sed -n 's/^since = "\([0-9a-f]*\)"$/\1/p' pyproject.toml)
messages="$since..HEAD"
if ! git merge-base --is-ancestor "$since" HEAD 2>/dev/null; then
    messages=HEAD
    echo "note: this checkout does not reach back to ${since:0:12}; of the messages only the newest is checked"
fi
reviewed=(--commit HEAD)
if [ -n "${AREAL_BASE:-}" ]; then
    reviewed=(--base "$AREAL_BASE")
elif ! git rev-parse --quiet --verify HEAD^ >/dev/null; then
    reviewed=(--worktree)
    echo "note: this checkout has one commit, so there is no change of it to review; what is not committed is"
fi

gate ruff-check $bin/ruff check .
gate ruff-format $bin/ruff format --check .
gate import-linter $bin/lint-imports
gate commit-messages $bin/areal-commit check "$messages"
gate review $bin/areal-review "${reviewed[@]}"
gate harness-sync $bin/areal-harness sync --check
gate translations $bin/areal-docs zh-check --check --no-history
if [ $fast = 0 ]; then
    gate mypy $bin/mypy
    if [ -f scripts/generate_reference.py ]; then gate reference $bin/python scripts/generate_reference.py --check; fi
    gate harness-check $bin/areal-harness check
    gate command-pages $bin/python scripts/generate_command_pages.py --check
    gate checklists $bin/areal-audit --check
    gate fault-table $bin/python scripts/generate_fault_table.py --check
fi

# Last, and not through `gate`: its closing line with the counts is the last line of a run that passes.
if [ $fast = 1 ]; then tests=(tests/test_architecture.py -q); else tests=(-q -n 2 --durations=10 --durations-min=3); fi
if [ $fast = 0 ] && [ $all = 0 ]; then tests+=(-m "not exhaustive"); fi
$bin/python -m pytest "${tests[@]}" || failed+=(pytest)

if [ ${#failed[@]} -gt 0 ]; then
    echo "check: failed gates: ${failed[*]}" >&2
    exit 1
fi
