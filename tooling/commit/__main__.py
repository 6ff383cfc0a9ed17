"""`python -P -m tooling.commit`: what the hook runs."""

from tooling.commit.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
