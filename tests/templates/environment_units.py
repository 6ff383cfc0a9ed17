"""Environments for the tests of the templates, and mistakes that a person may well make in one."""

from __future__ import annotations

UNITS: dict[str, dict[str, object]] = {
    "number_game": {"style": "text"},
    "short_game": {"style": "text", "max_steps": 1},
    "corner_shop": {"style": "tools", "max_steps": 12},
}

SHARED = ("    def create(self)", "    @__import__('functools').cache\n    def create(self)")
SEEDLESS = ("random.Random(seed)", "random.Random()")
ENDLESS = ('raise RuntimeError("step() after the end of the episode")', "return StepResult(observation=TurnObservation(messages=()))")  # fmt: skip
MISTAKES = {
    "number_game": [
        SEEDLESS,
        SHARED,
        ENDLESS,
        ("truncated=is_last", "terminated=is_last"),
        ('text = f"error', 'raise ValueError(answer.text)\n            text = f"error'),
        ("reward=1.0", "reward=0.5"),
        ("found[-1]", "found[0]"),
        (" or is_last", ""),
    ],
    "corner_shop": [
        SEEDLESS,
        SHARED,
        ENDLESS,
        ("messages.append({", "messages.insert(0, {"),
        ("reward=float(right)", "reward=1.0"),
        ('_is_number(call.arguments.get("total")) and ', ""),
        ("        if is_last:\n            self._prices = {}\n", ""),
        ("isinstance(item, str)", "item"),
    ],
}
"""By unit, what is replaced by what."""


def mistaken(unit: str, module: str) -> list[str]:
    """Return the source of a unit once for each mistake."""
    for old, _ in MISTAKES[unit]:
        assert old in module, f"{unit} has no {old!r} any more"
    return [module.replace(old, new) for old, new in MISTAKES[unit]]
