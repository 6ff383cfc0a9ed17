"""`areal-harness`: one source of skills and experts, compiled for every agent platform, and checked against the code.

Each module needs only those above it:

    sources     skills/<name>/SKILL.md and agents/<name>.md, read and held to their formats; limits and platforms
                of `[tool.areal.harness]` in pyproject.toml
    platforms   a small adapter per platform, in one table
    globs       which paths a glob means
    compile     sources -> files of the platforms; what is on disk compared with them
    clients     the agent programs, asked what they see
    ownership   which expert answers for a file; the block of a page that the code writes
    evaluation  tasks for skills in scratch copies, and a check of what an agent left there
    checks      every path, symbol, command and option that a page mentions exists; sizes; the map of AGENTS.md;
                sentences about what does not exist
    commands    `sync`, `check`, `list`, `doctor`, `eval`
"""
