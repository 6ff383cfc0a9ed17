"""Pages of the built-in kinds: what a template cannot say itself (answers derived from data, from options)."""
