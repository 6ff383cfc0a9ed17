"""Supports SGLang servers: their command line and their HTTP API."""
