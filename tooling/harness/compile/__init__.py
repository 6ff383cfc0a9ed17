"""Sources to files of the platforms, and what is on disk compared with them."""
