"""Infers the spec of one instance: each part is a hypothesis that must reproduce what the traced module did."""
