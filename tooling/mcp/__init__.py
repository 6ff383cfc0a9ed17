"""`areal-mcp`: the commands of this harness as typed tools of the Model Context Protocol, over stdin and stdout.

A tool is a command line with `--json`: the server validates arguments, runs the command in a process of its own, and
hands its JSON object back. It decides nothing that a command decides, and keeps nothing between calls.

    tools       the one table of tools; its schemas; from arguments to a command line
    running     child processes: their lifeline, limits and cancellation; who may run beside whom
    serving     what the protocol sees: results, skills and experts as pages, the server itself (loads the SDK)
    cli         `areal-mcp`, `--list`, `--self-test`, `config`
"""
