"""The declared versions of a repository: which one it has (baseline), and moving them to another (bump)."""
