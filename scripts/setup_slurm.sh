#!/usr/bin/env bash
# Slurm from the distribution's packages (job.backend slurm), for the tests that start a cluster of several nodes on this
# machine. Debian and its relatives, as root. Starts nothing: the tests start their own daemons and end them. Idempotent.
#
#   bash scripts/setup_slurm.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly PACKAGES=(slurmctld slurmd slurm-client munge)

if command -v slurmctld slurmd sbatch munged >/dev/null; then
    say "slurm is ready ($(slurmctld -V))"
    exit 0
fi
command -v apt-get >/dev/null || { say "there is no apt-get; install ${PACKAGES[*]} or their like by hand"; exit 2; }
[ "$(id -u)" = 0 ] || { say "installing ${PACKAGES[*]} needs root"; exit 2; }
say "installing ${PACKAGES[*]}"
apt-get update -qq
# RUNLEVEL=1 keeps the packages from starting services of their own.
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${PACKAGES[@]}" >/dev/null
say "ready: the tests of areal/infra/jobs run on Slurm now ($(slurmctld -V))"
