"""Decoding on an accelerator: rows, sampling and the decision who has ended stay on the device."""
