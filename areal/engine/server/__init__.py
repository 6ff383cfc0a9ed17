"""Shared parts of the engines that use inference servers: client, routing, retries, weight updates, versions."""
