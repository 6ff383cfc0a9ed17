#!/usr/bin/env bash
# Installs the agent programs that `areal-harness doctor` and its tests ask what they see, and that the tests of the
# gateway run, at the versions these were written for. Nothing is logged in, and nothing outside of the folder is changed. About 1.3 GB; needs npm.
#
#   bash scripts/setup_agent_clis.sh [FOLDER]      # default: .areal-cache/agent-clis
#   areal-harness doctor --clients FOLDER/node_modules/.bin
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=${1:-.areal-cache/agent-clis}
packages=(node@22 @anthropic-ai/claude-code@2.1.329 @openai/codex@0.169.0 opencode-ai@1.18.33)

if ! command -v npm >/dev/null; then
    echo "setup_agent_clis: npm was not found; install Node.js first" >&2
    exit 2
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
stamp=$folder/.installed
if [ "$(cat "$stamp" 2>/dev/null || true)" != "${packages[*]}" ]; then
    [ -f "$folder/package.json" ] || echo '{"private": true}' >"$folder/package.json"
    npm install --prefix "$folder" --no-audit --no-fund --loglevel error "${packages[@]}" >&2
    echo "${packages[*]}" >"$stamp"
fi
echo "$folder/node_modules/.bin"
