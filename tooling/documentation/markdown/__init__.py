"""A Markdown page taken apart: sections, what they say, and what a translation of them has to keep."""
