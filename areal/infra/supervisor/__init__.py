"""Keeps server processes running: start, health checks, hang detection, bounded restarts, logs, no orphans."""
