"""Carries weight versions to inference servers: manifests with digests, through files, shared memory or a broadcast."""
