"""Every place where a repository says which version of what it needs, with the span of the version. Reads text only."""
