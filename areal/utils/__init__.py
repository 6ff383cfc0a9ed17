"""Helpers that know nothing of this domain (files, seeds, logging); they import nothing of ours. Import the
submodules."""
