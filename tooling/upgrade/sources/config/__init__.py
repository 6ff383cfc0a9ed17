"""Where this user looks for packages, as pip and uv are told."""
