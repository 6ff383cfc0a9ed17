"""Trains one model, in one process or split over many: batches, passes, optimizers, states, checkpoints."""
