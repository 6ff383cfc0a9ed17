"""The `areal` command as one rank of a run with megatron-core on processors."""

import stand_in

stand_in.install()

from areal.cli.main import main  # noqa: E402 - after the stand-in

if __name__ == "__main__":
    raise SystemExit(main())
