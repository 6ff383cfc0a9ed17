#!/usr/bin/env bash
# Environment of the site's generator (mkdocs.yml; `make docs-site` uses it) and of what runs its notebooks
# (scripts/make_notebooks.py). Its own folder, because nothing else needs it.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-site
readonly WANT=("griffe==2.4.1" "ipykernel==7.4.0" "mike==2.2.0" "mkdocs==1.6.1" "mkdocs-material==9.8.2" "mkdocstrings==1.0.8" "mkdocstrings-python==2.0.11" "nbclient==0.11.0" "nbformat==5.11.1")

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "150 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import ipykernel, material, mkdocs, mkdocstrings, nbclient' "a package does not import"
say "ready: make docs-site"
