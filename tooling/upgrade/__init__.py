"""`areal-upgrade-deps` and `areal-audit`: bump a dependency and find each place that its new version breaks.

Nothing here imports or runs what it looks at. A run goes, each package standing only on those before it.
Releases are read by `tooling.python.symbols`:

    declarations  every place that names a version, with its span
    policy      what is watched, and how (pyproject.toml, or inferred)
    sources     releases from package indexes: range reads, hashes, cache            -> releases.Release
    usage       what this repository does with a package, file by file               -> uses.Use
    verdicts    one use judged against the old and the new release                    -> findings.AuditFinding
    interfaces  flags, routes and environment variables, both sides
    manifests   the declarations edited; locks and conflicts
    fixes, checklists, report, cli
"""
