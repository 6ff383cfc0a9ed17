"""The new commit, computed from objects alone: nothing here knows branches, an index or a work tree."""
