"""Hold one module per command; `areal.cli.main.COMMANDS` lists them."""
