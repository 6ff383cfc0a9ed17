"""A branch brought to another commit together with index and work tree. A record is written before the first change, so
that the next run can end or take back what a killed one began; what cannot be explained by either commit is put aside,
never overwritten."""
