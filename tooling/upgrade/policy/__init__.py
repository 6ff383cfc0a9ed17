"""What a repository watches and how its versions are declared: `[tool.areal.upgrade]`, or inferred."""
