"""Numbers and sampled rollouts of a run: `logger` writes, `live` shows them meanwhile, `report` makes a page of them.

`names` lists the metrics that the live view and the report know how to show.
"""
