"""Training engine on one process (CPU or one accelerator)."""
