"""The developer harness: commands that generate, register, prove and audit extensions. Reads `areal` as text, never
imports it."""
