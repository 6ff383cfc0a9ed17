"""The one source: skills and experts as pages with a head of YAML, read and held to their formats."""
