"""`python -P -m tooling.mcp` is `areal-mcp`."""

from tooling.mcp.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
