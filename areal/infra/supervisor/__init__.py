"""Keeps server processes alive: start, health, hang detection, bounded restarts, logs, and no orphans."""
