"""Layers that families share: attention, rotary positions, norms, feed-forward layers, experts, decoder blocks."""
