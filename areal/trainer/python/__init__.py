"""Training from Python: the same configurations and the same run as `areal train`, given as keywords and objects.

`runs` has the classes that `areal` exports, `arguments` and `rows` turn what they are given into a configuration,
`result` is what training returns, `loop` has the parts for a loop of one's own.
"""
