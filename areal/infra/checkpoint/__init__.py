"""What keeps a run's work safe, by module: `store` (atomic, hashed checkpoints), `state_io` (exact state on disk),
`lock` (one process per run directory) and `signals` (stop at a safe point)."""
