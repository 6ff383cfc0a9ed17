"""`python -P -m tooling.pull_request`."""

from tooling.pull_request.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
