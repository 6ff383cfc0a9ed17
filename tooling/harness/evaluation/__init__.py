"""Whether a skill works: a task in a scratch copy of the repository, an agent that does it, and a look at what is left.

    records.py     an evaluation, its steps and checks; what came out
    read.py        skills/<name>/evals: evals.json as agentskills.io describes it, checker.toml for what programs judge
    workspace.py   the scratch copy: made, prepared for a task, put back
    checks/        one function per kind of check; none runs a shell, and none runs anything that an agent printed
    agents.py      how an agent program is started with a prompt
    judge.py       the checks of one task, in order

What is judged is the state of the repository, never what an agent says about it.
"""
