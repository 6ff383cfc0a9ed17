"""The text of a pull request: facts that were measured, each in its place, and nothing that was not."""
