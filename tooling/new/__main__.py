"""`python -m tooling.new` is `areal-new`."""

from __future__ import annotations

from tooling.new.command_line import main

if __name__ == "__main__":
    raise SystemExit(main())
