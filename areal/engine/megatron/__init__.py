"""Trains dense decoders with megatron-core: its layers and schedules, our losses and optimizers."""
