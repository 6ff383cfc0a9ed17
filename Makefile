# Thin names for the scripts; without make, run the commands on the right.

.PHONY: help setup demo test test-all lint format docs docs-site

help:
	@echo "make demo    set up, then run asynchronous GRPO on arithmetic and write a report"
	@echo "make test    set up, then every gate: style, types, layers, docs, tests (five minutes)"
	@echo "make test-all  the same with the exhaustive tests"
	@echo "make setup   make .venv ready (again: milliseconds)"
	@echo "make lint    the quick gates only"
	@echo "make format  rewrite the code in the house style"
	@echo "make docs    regenerate the reference pages, the changelog and the checklists of dependencies"
	@echo "make docs-site  build the site of docs/ in build/site; nothing of it is loaded from elsewhere"

setup:
	@bash scripts/setup.sh

demo: setup
	@.venv/bin/areal demo

test: setup
	@bash scripts/check.sh

test-all: setup
	@bash scripts/check.sh --all

lint: setup
	@bash scripts/check.sh --fast

format: setup
	@.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

docs: setup
	@.venv/bin/python scripts/generate_reference.py
	@.venv/bin/python scripts/generate_command_pages.py
	@.venv/bin/python scripts/generate_fault_table.py
	@.venv/bin/python scripts/generate_code_owners.py
	@.venv/bin/python scripts/draw_figures.py
	@.venv/bin/areal-commit changelog --write CHANGELOG.md
	@.venv/bin/areal-audit --write

docs-site: setup
	@bash scripts/setup_site.sh
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet --config-file scripts/site/mkdocs.yml
	@echo "build/site/index.html"
