"""Metrics to JSONL always, to TensorBoard and W&B on request; the HTML report."""
