"""The commands of `areal-upgrade-deps` and `areal-audit`: one module each, with its arguments and what it prints."""
