"""The only composition root: run configurations, and the training loops that wire engines, rollouts and algorithms."""
