"""What is looked for: one page per family, `catalogue.py` lists all."""
