"""Finds out what a Hugging Face decoder architecture computes, and proves it: `python -m areal.porting`.

subject -> instance -> trace -> inference -> spec + weights   (one config: what does this model compute?)
variations -> many specs -> expressions over config fields    (all configs: which field decides what?)
-> report (JSON)                                              (what `areal-new model` renders as a family)

Nothing found is believed before logits agree with `transformers`; what cannot be explained is refused with its place.
"""
