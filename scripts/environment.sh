# shellcheck shell=bash
# What the programs that make an environment share; sourced by scripts/setup*.sh, from the repository root.

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }

digest() {
    if command -v sha256sum >/dev/null; then sha256sum; elif command -v shasum >/dev/null; then shasum -a 256; else cksum; fi
}

# Export pip's find-links, indexes and certificate, as the Python $1 has them, for uv, which does not read them itself.
# Variables of uv that are set already win.
export_pip_settings() {
    local name value
    while IFS='=' read -r name value; do
        if [ -n "$name" ] && [ -z "${!name:-}" ]; then export "$name=$value"; fi
    done < <("$1" - <<'PY'
import ast
import subprocess
import sys

NAMES = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
output = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False).stdout
found = {}
for line in output.splitlines():  # global.x='...', then install.x='...', then :env:.x='...': later ones win, as in pip
    key, _, value = line.partition("=")
    section, _, name = key.rpartition(".")
    if name in NAMES and section in ("global", "install", ":env:"):
        rank = ("global", "install", ":env:").index(section)
        if rank >= found.get(name, (-1, ""))[0]:
            found[name] = (rank, ast.literal_eval(value))
for name, (_, value) in found.items():
    separator = "," if name == "find-links" else " "
    print(f"{NAMES[name]}={separator.join(value.split())}")
if "extra-index-url" in found:
    print("UV_INDEX_STRATEGY=unsafe-best-match")  # pip's rule: the best version from any index
PY
    )
}

# End the program when the environment $1 was made from $2 already, or when there is no uv to make it with. Otherwise
# leave uv ready to make it. A script makes the environment and installs into it with lines of its own, which
# `areal-upgrade-deps` reads. It compiles bytecode: else each process of a server would parse everything at every start,
# 94 s instead of 23 s.
#   $3: what is installed, in words    $4: how large it is
begin_environment() {
    [ -x .venv/bin/uv ] || { say "run 'make setup' first (.venv/bin/uv is missing)"; exit 2; }
    if [ "$(cat "$1/.ready" 2>/dev/null || true)" = "$2" ]; then
        say "$1 is ready ($3)"
        exit 0
    fi
    say "installing $3 into $1${4:+ ($4)}"
    rm -f "$1/.ready"
    export_pip_settings .venv/bin/python
}

# Note that the environment $1 was made from $2, after the statement $3 has run in it; $4 says what failed if it does not.
finish_environment() {
    HF_HUB_OFFLINE=1 "$1/bin/python" -c "$3" >/dev/null 2>"$1/.import.log" || {
        say "$4:"
        tail -5 "$1/.import.log" >&2
        exit 1
    }
    printf '%s\n' "$2" >"$1/.ready"
}
