"""Running things: rollout execution, checkpoints, metrics. Knows processes and files, no tensors' meaning."""
