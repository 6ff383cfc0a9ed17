#!/usr/bin/env bash
# Everything that is to be known about one GPU, in 40 minutes: a line for each program, with a budget. A line that fails is
# noted, and one that takes twice its budget is stopped; the others go on. So is what a line leaves in the GPU's memory,
# since the next one may fail for that. Writes FOLDER/session.md (a table of the lines, and then what each of them printed)
# and FOLDER/logs.
#
#   bash benchmarks/gpu_session.sh                     # one CUDA device; environments are made first
#   bash benchmarks/gpu_session.sh --try               # the same programs with tiny models on the CPU
#   bash benchmarks/gpu_session.sh --dry-run           # the lines, and what they would run
#
#   --folder FOLDER   for the results (runs/gpu-session)
#   --write-docs      put what session.md says into docs/benchmarks.md, too
#   --only NAME       lines whose name contains it; may be repeated
#   --lines FILE      other lines: name|minutes|command
#   --seconds-per-minute N   scales the budgets (60)
#
# A machine that reaches no package index: see scripts/wheel_folder.sh. Exit codes: 0 every line passed, 1 some did not,
# 2 wrong arguments.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TOTAL_MINUTES=40
folder=runs/gpu-session try="" dry="" write="" lines="" minute=60 only=()

usage() { sed -n '2,20s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
say() { printf 'gpu_session: %s\n' "$*" >&2; }

while [ $# -gt 0 ]; do
    case "$1" in
    --try) try=yes ;;
    --dry-run) dry=yes ;;
    --write-docs) write=yes ;;
    --help | -h) usage; exit 0 ;;
    --folder | --only | --lines | --seconds-per-minute)
        [ $# -ge 2 ] || { say "$1 needs a value"; exit 2; }
        case "$1" in
        --folder) folder=$2 ;;
        --only) only+=("$2") ;;
        --lines) lines=$2 ;;
        *) minute=$2 ;;
        esac
        shift ;;
    *) say "unknown argument '$1'; --help lists them"; exit 2 ;;
    esac
    shift
done

# name|minutes|command. The budgets add up to TOTAL_MINUTES.
lines_for_a_gpu() {
    cat <<'LINES'
set-up|2|bash scripts/setup.sh && .venv/bin/python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())'
set-up-trl|3|bash scripts/setup_trl.sh && bash scripts/setup_trl.sh --vllm
set-up-vllm|2|AREAL_VLLM=cuda bash scripts/setup_vllm.sh
tests|2|.venv/bin/python -m pytest -q --maxfail 20 -m "not exhaustive" tests/areal/engine/train tests/areal/engine/embedded/device tests/areal/models/test_varlen_attention.py
step|5|.venv/bin/python benchmarks/gpu_step.py --rounds 2
step-checkpointing|3|.venv/bin/python benchmarks/gpu_step.py --checkpointing --rounds 1 --sides train transformers
step-profile|3|.venv/bin/python benchmarks/gpu_step.py --profile --rounds 1 --steps 3 --sides train
embedded|4|.venv/bin/python benchmarks/embedded_engine.py --device cuda --size 0.6B --batch 1 64 256 --groups 32
embedded-no-graphs|2|.venv/bin/python benchmarks/embedded_engine.py --device cuda --size 0.6B --batch 1 64 --groups 0 --rounds 1 --cuda-graphs off
grpo-embedded|5|.venv/bin/python benchmarks/grpo_vs_trl.py --workload throughput --size 0.6B --device cuda --rounds 1 --steps 8 --new-tokens 256 --sides areal areal-async
grpo-servers|5|.venv/bin/python benchmarks/grpo_vs_trl.py --workload throughput --size 0.6B --device cuda --rounds 1 --steps 8 --new-tokens 256 --sides areal-vllm areal-vllm-async --trl-vllm
weights|4|.venv/bin/python benchmarks/weight_updates.py --sizes 0.6B --device cuda --servers 1 --rounds 3
LINES
}

# The same programs and options, as far as a CPU has them: TRL runs vLLM in its own process on GPUs only.
lines_to_try() {
    cat <<'LINES'
set-up|2|bash scripts/setup.sh
set-up-trl|3|bash scripts/setup_trl.sh
set-up-vllm|2|AREAL_VLLM=cpu bash scripts/setup_vllm.sh
tests|2|.venv/bin/python -m pytest -q --maxfail 20 tests/areal/engine/train/test_device_reads.py tests/areal/engine/embedded/device tests/areal/models/test_varlen_attention.py
step|5|.venv/bin/python benchmarks/gpu_step.py --size tiny --device cpu --rounds 1 --steps 2
step-checkpointing|3|.venv/bin/python benchmarks/gpu_step.py --size tiny --device cpu --checkpointing --rounds 1 --steps 2 --sides train transformers
step-profile|3|.venv/bin/python benchmarks/gpu_step.py --size tiny --device cpu --profile --rounds 1 --steps 2 --sides train
embedded|4|.venv/bin/python benchmarks/embedded_engine.py --device cpu --size tiny --batch 1 4 --groups 2 --new-tokens 8 --prompt 16 --rounds 1
embedded-no-graphs|2|.venv/bin/python benchmarks/embedded_engine.py --device cpu --size tiny --batch 1 4 --groups 0 --new-tokens 8 --prompt 16 --rounds 1 --cuda-graphs off
grpo-embedded|5|.venv/bin/python benchmarks/grpo_vs_trl.py --workload throughput --size tiny --device cpu --rounds 1 --steps 4 --new-tokens 8 --prompts 2 --sides areal areal-async
grpo-servers|5|.venv/bin/python benchmarks/grpo_vs_trl.py --workload throughput --size tiny --device cpu --rounds 1 --steps 4 --new-tokens 8 --prompts 2 --sides areal-vllm areal-vllm-async
weights|4|.venv/bin/python benchmarks/weight_updates.py --sizes tiny --device cpu --servers 1 --rounds 1 --carriers shared_memory broadcast
LINES
}

if [ -n "$lines" ]; then
    [ -f "$lines" ] || { say "no file $lines"; exit 2; }
    all=$(cat "$lines")
elif [ -n "$try" ]; then all=$(lines_to_try); else all=$(lines_for_a_gpu); fi

wanted() {
    local name
    [ ${#only[@]} -gt 0 ] || return 0
    for name in "${only[@]}"; do case "$1" in *"$name"*) return 0 ;; esac; done
    return 1
}

if [ -n "$dry" ]; then
    while IFS='|' read -r name minutes command; do
        if wanted "$name"; then printf '%-20s %s min  %s\n' "$name" "$minutes" "$command"; fi
    done <<<"$all"
    exit 0
fi
if [ -z "$try$lines" ] && ! nvidia-smi -L >/dev/null 2>&1; then
    say "there is no NVIDIA GPU (nvidia-smi -L); --try runs the programs on the CPU"
    exit 2
fi

# MiB of the GPU's memory that are taken; nothing without one.
taken() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | head -1 | tr -dc '0-9'; }

# Servers that were stopped take a moment to end. Say what stays after that: others may fail for lack of memory.
left_behind() {
    local until=$((SECONDS + minute / 4)) now
    while now=$(taken) && [ "${now:-0}" -gt $((before + 1024)) ]; do
        if [ $SECONDS -ge $until ]; then printf '; %s MiB of the GPU are still taken' "$((now - before))"; return; fi
        sleep 1
    done
}

mkdir -p "$folder/logs" || exit 2
before=$(taken)
before=${before:-0}
table="$folder/logs/lines.txt" results="$folder/logs/results.txt"
: >"$table"
: >"$results"
started=$SECONDS failed=0
while IFS='|' read -r name minutes command; do
    wanted "$name" || continue
    log="$folder/logs/$name.log" outcome="passed" took=0
    if [ $((SECONDS - started)) -ge $((TOTAL_MINUTES * minute)) ]; then
        outcome="not begun: $TOTAL_MINUTES minutes were over"
    else
        say "$name (budget $minutes min): $command"
        begun=$SECONDS
        # Standard output, which has the tables, apart from what is told on the way.
        timeout --kill-after=20 $((2 * minutes * minute)) bash -c "$command" >"$log" 2>"$log.err" </dev/null
        code=$?
        took=$((SECONDS - begun))
        case $code in
        0) ;;
        124 | 137) outcome="stopped at twice its budget" ;;
        *) outcome="failed ($code): $(grep -v '^[[:space:]]*$' "$log.err" | tail -1 | cut -c1-120 | tr '|' '/')" ;;
        esac
        if [ "$outcome" = passed ] && [ -s "$log" ]; then { printf '\n### %s\n\n' "$name"; cat "$log"; } >>"$results"; fi
        outcome+=$(left_behind)
    fi
    case $outcome in passed*) ;; *) failed=1 ;; esac
    say "$name: $outcome after $took s"
    printf '| %s | %s | %s | %s | `%s` |\n' "$name" "$minutes" "$took" "$outcome" "${command//|/\\|}" >>"$table"
done <<<"$all"

{
    printf '%s\n\n' "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo 'CPU')"
    printf '| line | budget, min | seconds | outcome | command |\n| --- | --- | --- | --- | --- |\n'
    cat "$table" "$results"
} >"$folder/session.md"
say "wrote $folder/session.md"
if [ -n "$write" ]; then
    PYTHONPATH=benchmarks .venv/bin/python -c 'import sys
from pathlib import Path
from common import write_docs
write_docs("gpu_session", Path(sys.argv[1]).read_text().strip())' "$folder/session.md" || exit 1
fi
exit $failed
