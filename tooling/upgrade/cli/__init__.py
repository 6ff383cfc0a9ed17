"""The command lines `areal-upgrade-deps` and `areal-audit`."""
