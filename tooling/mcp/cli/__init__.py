"""The command line of `areal-mcp`."""
