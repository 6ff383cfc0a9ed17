"""Evaluation of a model on named sets of rows: during training, and by `areal eval` on any checkpoint.

statistics    numbers about samples: pass@k, maj@k, intervals, comparison of two models
answers       what a sample votes for
samples       one sampled answer and the results of a set
sets          rows, reward, workflow and sampling of each set of a configuration
evaluator     evaluates during a run, on the engine that rolls out
standalone    evaluates a checkpoint, keeps every sample, and continues where it was killed
page          the report as one HTML page
"""
