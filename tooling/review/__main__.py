"""`python -m tooling.review`."""

from tooling.review.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
