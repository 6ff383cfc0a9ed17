#!/usr/bin/env bash
# Environment with the agent SDKs that the gateway's tests run unmodified: OpenAI, Anthropic, openai-agents, langchain,
# litellm, pydantic-ai and smolagents. Its own folder, because none of them is needed to train. Idempotent; needs
# `make setup` first (it reuses that environment's uv and cache). The command-line agents have a script of their own,
# scripts/setup_agent_clis.sh.
#
#   bash scripts/setup_agent_clients.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh

readonly VENV=.venv-agents
readonly WANT=(
    "anthropic==2.12.0"
    "langchain==1.4.7"
    "langchain-anthropic==1.7.7"
    "langchain-openai==1.7.3"
    "litellm==1.83.0"
    "openai==3.54.0"
    "openai-agents==0.24.0"
    "pydantic-ai-slim[openai]==2.68.0"
    "smolagents==1.26.0"
)

begin_environment $VENV "${WANT[*]}" "${WANT[*]}" "400 MB"
.venv/bin/uv venv -q --allow-existing --python .venv/bin/python "$VENV"
.venv/bin/uv pip install -q --compile-bytecode --python "$VENV/bin/python" "${WANT[@]}"
finish_environment $VENV "${WANT[*]}" 'import agents, anthropic, langchain_anthropic, langchain_openai, litellm, openai, pydantic_ai, smolagents' \
    "a client does not import"
say "ready: pytest tests/areal/gateway/test_clients.py runs them"
