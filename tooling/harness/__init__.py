"""`areal-harness`: one source of skills and experts, compiled for every agent platform, and checked against the code.

A run goes, each package standing only on those before it:

    findings    what is wrong, where, and what to do
    policy      limits and platforms (pyproject.toml, `[tool.areal.harness]`)
    sources     skills/<name>/SKILL.md and agents/<name>.md, read and held to their formats
    platforms   one small adapter per platform, in one table
    compile     sources -> files of the platforms; what is on disk compared with them
    checks      every path, symbol, command and option that a page mentions exists; sizes; the map of AGENTS.md
    clients     the agent programs, asked what they see
    evaluation  tasks for skills in scratch copies, and a look at what an agent left there
    cli
"""
