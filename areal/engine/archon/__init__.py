"""What surrounds training over many processes: what it would cost (`planning`), and proof that it computes what one
process computes (`equality`). The engine itself is `areal.engine.train`."""
