"""What a release offers beside its symbols (flags, routes, environment variables), and who uses it in a repository."""
