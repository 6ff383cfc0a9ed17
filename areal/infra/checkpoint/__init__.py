"""What keeps a run's work safe: checkpoints that are atomic and hashed, one process per run directory, stops at a safe
point. `store` holds the first, `run_control` the other two."""
