"""Templates: where the kinds are, their questions and manifests, rendering, formatting, and the tree they came from."""
