"""The verdicts: how each section of a translation stands to its source."""
