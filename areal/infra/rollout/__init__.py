"""Asynchronous rollout: admission under a hard staleness bound, execution, retries, and the ledger of prompts."""
