"""Reads a change, says how risky it is and why, finds bugs that rules can prove, and writes prompts: `areal-review`.

It never writes, runs nothing of the project and needs no network.

    repository/   the change, both sides of it, their modules and what refers to what
    rules/        one page per family of rules; a rule yields places, never decides what is new
    policy.py     settings of the repository, and the table of domains
    linter.py     asks ruff; checker.py asks ty; secrets.py asks detect-secrets
    findings.py   what is new against the base, and what is suppressed
    analysis.py   users of what changed, risk, review passes
    report.py     text, JSON, SARIF, annotations, Markdown
    commands/     the command line
"""
