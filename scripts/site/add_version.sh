#!/usr/bin/env bash
# Add the site of this checkout to the branch gh-pages of this repository as one version, and name it `latest`. Earlier
# versions stay; pages have a list to choose from. Nothing is pushed: `git push origin gh-pages` publishes it.
#
#   bash scripts/site/add_version.sh 0.2        # needs bash scripts/setup_site.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ "${1:-}" =~ ^[0-9]+(\.[0-9a-z]+)*$ ]] || { echo "add_version: '${1:-}' is no version; expected one such as 0.2" >&2; exit 2; }

export AREAL_SITE_VERSIONS=mike NO_MKDOCS_2_WARNING=1 PATH="$PWD/.venv-site/bin:$PATH" # mike calls mkdocs
mike --quiet deploy --config-file scripts/site/mkdocs.yml --branch gh-pages --update-aliases "$1" latest
mike --quiet set-default --config-file scripts/site/mkdocs.yml --branch gh-pages latest
