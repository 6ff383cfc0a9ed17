"""`areal-pr`: a branch made ready, pushed and proposed, so that nothing is ever lost on the way.

    situation.py   which branch, base and remote; what forbids to begin
    git.py         the only place that runs git, and the throw-away store of objects for dry runs
    remote.py      what the remote has, fetched; whose commits those are
    history/       the new commit computed from objects alone: merged or replayed, squashed, with its message
    move/          branch, index and work tree brought to another commit, recoverable at every moment; backups
    body/          the text of the pull request: facts, and the template that they go into
    address.py     which repository of which service a remote is
    service.py     `gh`, or what to do by hand without it
    plan.py        the steps, each with what it needs, does and how it is taken back
    create.py      a plan made and carried out

Conflicts are found before anything changes: merging happens on objects, never in the work tree.
"""
