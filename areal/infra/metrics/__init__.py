"""Numbers and sampled rollouts of a run: `logger` writes and shows them, `jsonl` reads them back, `report` makes a page
of them.

`names` lists the metrics that the live view and the report know how to show.
"""
