"""`python -m tooling.harness` is `areal-harness`."""

from __future__ import annotations

from tooling.harness.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
