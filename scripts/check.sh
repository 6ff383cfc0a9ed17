#!/usr/bin/env bash
# Every gate of this repository, each with its seconds. All run even when one fails; the failed ones are named at the end.
#
#   bash scripts/check.sh            # a sample of the long matrices, at most five minutes on two cores
#   bash scripts/check.sh --all      # every kill, every split, every client call, every example of the command pages
#   bash scripts/check.sh --fast     # seconds: style, layers and the architecture test
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

fast=0 all=0
case "${1:-}" in
"") ;;
--fast) fast=1 ;;
--all) all=1 ;;
*)
    echo "check: unknown argument '$1'; expected --fast or --all" >&2
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

# A full run makes 100,000 small files and waits for many to reach the disk: 20 s of it go where memory holds them.
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null; then
    export TMPDIR=${TMPDIR:-/dev/shm}
fi
scratch=$(mktemp -d)
export TMPDIR=$scratch
trap 'rm -rf "$scratch"' EXIT
# Gates read no settings and caches of the user; what lets git work in a checkout of another user is kept.
mkdir "$scratch/home"
printf '[safe]\n\tdirectory = %s\n' "$PWD" >"$scratch/home/.gitconfig"
export HOME="$scratch/home" XDG_CACHE_HOME="$scratch/home/.cache" XDG_CONFIG_HOME="$scratch/home/.config"

failed=() background=()

report() { # report NAME STATUS SECONDS COMMAND: the output is shown only when the command failed
    if [ "$2" = 0 ]; then
        printf 'ok    %-15s %3d s\n' "$1" "$3"
    else
        printf 'FAIL  %-15s %3d s   %s\n' "$1" "$3" "$4"
        cat "$scratch/$1.log"
        failed+=("$1")
    fi
}

gate() { # gate NAME COMMAND...
    local name=$1 started=$SECONDS status=0
    shift
    "$@" >"$scratch/$name.log" 2>&1 || status=$?
    report "$name" $status $((SECONDS - started)) "$*"
}

later() { # later NAME COMMAND...: runs beside the tests, and is reported by `join`
    local name=$1
    shift
    printf '%s' "$*" >"$scratch/$name.command"
    (
        started=$SECONDS status=0
        "$@" >"$scratch/$name.log" 2>&1 || status=$?
        echo "$status $((SECONDS - started))" >"$scratch/$name.status"
    ) &
    background+=("$name")
}

join() {
    wait
    local name status seconds
    for name in ${background[@]+"${background[@]}"}; do
        read -r status seconds <"$scratch/$name.status" || status=1 seconds=0
        report "$name" "$status" "$seconds" "$(cat "$scratch/$name.command")"
    done
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

if [ $fast = 0 ]; then
    pages=(--check --changed)
    if [ $all = 1 ]; then pages=(--check); fi
    later mypy $bin/mypy
    later checklists $bin/areal-audit --check
    later harness-check $bin/areal-harness check
    later harness-sync $bin/areal-harness sync --check
    later command-pages $bin/python scripts/generate_command_pages.py "${pages[@]}"
fi
gate ruff-check $bin/ruff check .
gate ruff-format $bin/ruff format --check .
gate import-linter $bin/lint-imports
gate commit-messages $bin/areal-commit check "$messages"
gate review $bin/areal-review "${reviewed[@]}"
gate translations $bin/areal-docs zh-check --check --no-history
if [ $fast = 0 ]; then
    gate reference $bin/python scripts/generate_reference.py --check
    gate fault-table $bin/python scripts/generate_fault_table.py --check
fi

# Cheap folders come first, files stay whole (their fixtures are made once), and a wrong change ends the run early.
# Two workers more than there are cores: tests of hangs, limits and servers wait, and with one more both often do.
cores=$(nproc 2>/dev/null || echo 2)
tests=(-q --workers $((cores < 7 ? cores + 2 : 8)) --cheap-first --durations=10 --durations-min=3)
if [ $fast = 1 ]; then
    tests=(tests/test_architecture.py -q)
elif [ $all = 0 ]; then
    tests+=(-m "not exhaustive" --cpu-budget --maxfail=5)
fi
$bin/python -m pytest "${tests[@]}" 2>&1 | tee "$scratch/pytest.log"
if [ "${PIPESTATUS[0]}" != 0 ]; then failed+=(pytest); fi
join

if [ ${#failed[@]} -gt 0 ]; then
    echo "check: failed gates: ${failed[*]}" >&2
    exit 1
fi
# The line with the counts is the last one of a run that passes.
tail -n 1 "$scratch/pytest.log"
