# syntax=docker/dockerfile:1
#
#   docker build --build-arg VARIANT=cuda -t areal:cuda .
#   docker run --rm --gpus all -v "$PWD":/workspace areal:cuda train run.yaml
#
# VARIANT: cpu or cuda, which build of torch; vllm or sglang, a cuda image with the environment of that server beside it.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# git: the harness reads repositories. The compiler: torch compiles kernels when a run starts.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ git \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 1000 areal
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/areal

# Everything but areal itself: built anew only when a version moves.
FROM base AS dependencies
ARG VARIANT=cpu
COPY pyproject.toml ./
COPY scripts/locks scripts/locks
RUN --mount=type=cache,target=/root/.cache \
    python -m venv .venv \
    && .venv/bin/pip install --quiet uv \
    && case "$VARIANT" in \
        cpu) backend=cpu ;; \
        cuda|vllm|sglang) backend=cu128 ;; \
        *) echo "VARIANT is '$VARIANT', expected cpu, cuda, vllm or sglang" >&2; exit 2 ;; \
    esac \
    && .venv/bin/uv pip install --quiet --python .venv/bin/python --link-mode copy --torch-backend "$backend" \
        --compile-bytecode --constraint scripts/locks/cpu.txt --requirements pyproject.toml \
        --extra lora --extra mcp --extra review --extra servers --extra tensorboard --extra train
COPY scripts/environment.sh scripts/setup_vllm.sh scripts/setup_sglang.sh scripts/
COPY scripts/sglang_cpu scripts/sglang_cpu
RUN --mount=type=cache,target=/root/.cache \
    case "$VARIANT" in \
        vllm) AREAL_VLLM=cuda UV_LINK_MODE=copy bash scripts/setup_vllm.sh ;; \
        sglang) UV_LINK_MODE=copy bash scripts/setup_sglang.sh ;; \
    esac

FROM dependencies AS areal
COPY LICENSE README.md ./
COPY areal areal
COPY areal_harness areal_harness
COPY templates templates
COPY tooling tooling
RUN --mount=type=cache,target=/root/.cache \
    .venv/bin/uv pip install --quiet --python .venv/bin/python --link-mode copy --compile-bytecode --no-deps .
ENV PATH=/opt/areal/.venv/bin:$PATH
USER 1000
WORKDIR /workspace
ENTRYPOINT ["areal"]
CMD ["--help"]
