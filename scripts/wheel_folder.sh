#!/usr/bin/env bash
# Gathers in one folder what the set-up programs install, for a machine that reaches no package index. Run it on a machine
# that does, with the same system and version of Python; needs `make setup` first.
#
#   bash scripts/wheel_folder.sh FOLDER                  # for .venv
#   bash scripts/wheel_folder.sh FOLDER trl vllm         # these too: trl, trl-vllm, vllm (10 GB each with CUDA)
#   bash scripts/wheel_folder.sh FOLDER --dry-run        # the commands
#
# There, from the root of the repository:
#
#   source scripts/wheel_folder.sh && use_wheel_folder FOLDER
#   bash scripts/setup.sh
#
# Which build of torch comes is decided by pip's settings here: on Linux the package index has the one with CUDA.

# Have pip and uv take everything from the folder $1, and nothing from an index.
use_wheel_folder() {
    local folder
    folder="$(cd "$1" && pwd)" || return
    export PIP_NO_INDEX=1 PIP_FIND_LINKS="$folder" UV_OFFLINE=1 UV_FIND_LINKS="$folder"
}

if [ "${BASH_SOURCE[0]}" != "$0" ]; then return; fi
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

folder="" dry="" environments=(base)
for argument in "$@"; do
    case "$argument" in
    -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' scripts/wheel_folder.sh; exit 0 ;;
    --dry-run) dry=yes ;;
    trl | trl-vllm | vllm) environments+=("$argument") ;;
    -*) say "unknown option '$argument'; --help lists them"; exit 2 ;;
    *) [ -z "$folder" ] || { say "'$argument' is none of trl, trl-vllm, vllm"; exit 2; }; folder=$argument ;;
    esac
done
[ -n "$folder" ] || { say "expected a folder"; exit 2; }
[ -x .venv/bin/python ] || { say "run 'make setup' first (.venv is missing)"; exit 2; }

gather() {
    local command=(.venv/bin/python -m pip download --disable-pip-version-check -q --prefer-binary -d "$folder" "$@")
    if [ -n "$dry" ]; then printf '%s\n' "${command[*]}"; else "${command[@]}"; fi
}

# The words of a set-up program that names what it installs.
wanted() { sed -n "s/^readonly $2=\"\(.*\)\"$/\1/p" "scripts/$1"; }

for environment in "${environments[@]}"; do
    say "$environment into $folder"
    case "$environment" in
    # Beside the dependencies: what builds the package in place, and the programs that install.
    base) gather -c constraints.txt 'hatchling>=1.25' editables pip uv '.[dev]' ;;
    trl) gather -c constraints.txt "$(wanted setup_trl.sh WANT)" torch pillow ;;
    trl-vllm) gather "$(wanted setup_trl.sh WITH_VLLM)" pillow ;;
    vllm) gather -c scripts/locks/vllm.txt "$(wanted setup_vllm.sh CUDA_WANT)" ;;
    esac
done
