"""`python -m tooling.upgrade` is `areal-upgrade-deps`."""

from __future__ import annotations

from tooling.upgrade.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
