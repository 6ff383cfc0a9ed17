"""`areal-review`: reads a change, says how risky it is and why, finds bugs that rules can prove, and writes the prompts
with which an agent continues. It never writes, runs nothing of the project and needs no network.

    repository/   the change, both sides of it, their modules and what refers to what
    rules/        one page per family of rules; a rule yields places, never decides what is new
    review.py     what is new against the base
    suppression.py  which comments suppress a finding
    neighbours.py, domains.py, risk.py, passes.py    phases 1 to 3: users, owner domains, risk level, review passes
    report/       text, JSON, SARIF, annotations, Markdown
"""
