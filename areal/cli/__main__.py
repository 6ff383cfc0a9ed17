"""`python -m areal.cli`: the same as the `areal` command."""

import sys

from areal.cli.main import main

sys.exit(main())
