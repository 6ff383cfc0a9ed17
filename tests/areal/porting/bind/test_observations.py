"""Which fields expressions may read."""

from areal.porting.bind.observing import Observation, readable

BASE = Observation({"attention_dropout": 0.0, "hidden_size": 64}, {"num_layers": 4, "rotary": 8}, {})


def seen(rotary: int, **changes: object) -> Observation:
    return Observation({**BASE.config, **changes}, {"num_layers": 4, "rotary": rotary}, changes)


def test_noise_of_training_explains_nothing_among_many_changes() -> None:
    together = seen(0, attention_dropout=0.3, hidden_size=8)
    assert readable(["attention_dropout", "hidden_size"], [BASE, together]) == ["hidden_size"]
    assert readable(["attention_dropout"], [BASE, seen(8, attention_dropout=0.3), together]) == []


def test_noise_that_acts_alone_is_a_field_like_others() -> None:
    assert readable(["attention_dropout"], [BASE, seen(4, attention_dropout=0.3)]) == ["attention_dropout"]
