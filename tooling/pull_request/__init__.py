"""Makes a branch ready, pushes and proposes it, so that nothing is ever lost on the way: `areal-pr`.

    branch.py      which branch, base and remote; what forbids to begin
    git.py         git in this work tree, and the throw-away store of objects for dry runs
    remote.py      what the remote has, fetched; whose commits those are
    commits.py     the new commit and its message, computed from objects alone: merged or replayed, squashed
    move.py        branch, index and work tree brought to another commit, recoverable at every moment
    backups.py     what the branch was, and the record of a move in progress
    checks.py      the checks of the repository, run and attested
    facts.py       what a pull request says, measured
    body.py        its text: facts, and the template that they go into
    service.py     `gh`, or what to do by hand without it
    plan.py        the steps, each with what it needs, does and how it is undone
    create.py      a plan made and applied

Conflicts are found before anything changes: merging happens on objects, never in the work tree.
"""
