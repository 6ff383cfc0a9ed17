#!/usr/bin/env bash
# Environment of the site's generator (mkdocs.yml); `make docs-site` uses it. Its own folder, because nothing else needs it.
# Idempotent; needs `make setup` first (it reuses that environment's uv and download cache).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-site
readonly WANT=("griffe==2.4.1" "mike==2.2.0" "mkdocs==1.6.1" "mkdocs-material==9.8.2" "mkdocstrings==1.0.8" "mkdocstrings-python==2.0.11")

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "100 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import material, mkdocs, mkdocstrings' "a package does not import"
say "ready: make docs-site"
