"""Analyses what a Hugging Face decoder architecture computes, and proves it: `python -m areal.porting`.

subject -> instance -> trace -> inference -> spec + weights   (one config: what does this model compute?)
variations -> many specs -> expressions over config fields    (all configs: which field decides what?)
-> report (JSON) -> pieces of source                          (`write`: what `areal-new model` renders as a family)

A finding is accepted only when the logits match those of `transformers`; what cannot be explained is refused with its
place.
"""
