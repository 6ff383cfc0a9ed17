"""Writes the source of a family from the report of an analysis: `python -m areal.porting.write UNIT < report.json`."""
