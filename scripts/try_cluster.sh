#!/usr/bin/env bash
# Try what a cluster has to stand, on this machine: GRPO of two ranks and two servers on a cluster of four nodes, of
# which a server is killed, then a node, then the whole job has to make room. Prints the reward before, between and after,
# and how much the parameters differ from those of an undisturbed run. Several minutes on two cores.
#
#   bash scripts/try_cluster.sh slurm        # installs Slurm from Debian's packages when it is missing; needs root
#   bash scripts/try_cluster.sh ray          # makes .venv-ray when it is missing
#   bash scripts/try_cluster.sh local        # child processes of this machine, no cluster
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly BACKEND="${1:-local}"
case "$BACKEND" in
slurm | ray) bash "scripts/setup_$BACKEND.sh" ;;
local) ;;
*)
    echo "usage: bash scripts/try_cluster.sh local|slurm|ray" >&2
    exit 2
    ;;
esac
exec .venv/bin/python -m pytest -q -s -p no:xdist -m "" -k "reward_rises and $BACKEND" \
    tests/areal/infra/jobs/contract/test_acceptance.py
