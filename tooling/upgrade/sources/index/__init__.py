"""What indexes answer about a distribution: pages read, cached, and brought together."""
