"""Says whether a skill works: a task in a scratch copy of the repository, an agent that does it, checks of the result.

    records.py     an evaluation, its steps and checks; what came out
    read.py        tests/skills/<name>: evals.json as agentskills.io describes it, checker.toml for what programs judge
    workspace.py   the scratch copy: made, prepared for a task
    checks.py      one function per kind of check; none runs a shell, and none runs anything that an agent printed
    agents.py      starts an agent program with a prompt

Judged is the state of the repository, never what an agent says about it.
"""
