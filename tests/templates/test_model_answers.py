"""What a report becomes on its way into the answers of the model page."""

from __future__ import annotations

from tooling.new.generators.model import _without_nothing


def test_a_zero_is_kept_and_what_is_not_said_is_not():
    use = {"name": "n_shared_experts", "default": None, "minimum": 0, "nullable": False, "allowed": [], "reason": ""}
    assert _without_nothing(use) == {"name": "n_shared_experts", "default": None, "minimum": 0}
