"""Chat endpoints over an inference engine for agents that are trained as they are: every token that was sampled is kept
with its log-probability and version, and a conversation goes on from those tokens, never from their text."""
