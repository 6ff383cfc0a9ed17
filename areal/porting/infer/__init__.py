"""From one instance to its spec: each part is a hypothesis that must reproduce what the traced module did."""
