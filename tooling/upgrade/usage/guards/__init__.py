"""Guards: what a test expression says about versions and names, without running anything."""
