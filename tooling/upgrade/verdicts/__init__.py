"""Judges each use against the old and the new release: what breaks, why, and what to write instead.

Pure functions over `uses`, `symbols` and `findings`; each verdict family is a module. Nothing is said of a place that
is not reached on the new version, of a failure that a fallback answers, and of what is open on either side.
"""

from tooling.upgrade.verdicts.audit import audit
from tooling.upgrade.verdicts.comparison import ReleasePair
from tooling.upgrade.verdicts.untyped import changed_members

__all__ = ["ReleasePair", "audit", "changed_members"]
