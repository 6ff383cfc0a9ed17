"""Wheels and sdists, read in memory and never extracted: whatever is wrong with one raises ArchiveError."""
