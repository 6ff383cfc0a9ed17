"""`areal-new`: generates units (rewards, datasets, workflows, ...), registers and proves them; updates, renames and
undoes them later."""
