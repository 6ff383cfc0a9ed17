"""`python -m areal`: the same as the `areal` command."""

from areal.cli.main import main

raise SystemExit(main())
