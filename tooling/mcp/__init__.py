"""`areal-mcp`: the commands of this harness as typed tools of the Model Context Protocol, over stdin and stdout.

A tool is a command line with `--json`: the server validates arguments, runs the command in a process of its own, and
returns its JSON object. It decides nothing that a command decides, and keeps nothing between calls.

    tools        the table of tools; arguments from the commands' parsers; from arguments to a command line
    processes    commands as child processes: lifeline, limits and cancellation; which may run side by side
    answers      from a command's end to the answer of a call
    pages        skills and experts as resources and prompts
    server       what the protocol sees; loads the SDK
    commands     `--list`, `--self-test`, `config`
"""
