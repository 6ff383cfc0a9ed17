"""`python -m tooling.documentation`."""

from tooling.documentation.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
