"""The change under review: git, the two sides of the change, their modules."""
