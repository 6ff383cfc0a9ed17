"""The variants of a unit's name, computed once and handed to templates, registries and messages as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass

NAME_FIELDS = ("raw", "snake", "pascal", "const", "kebab", "key", "words")
"""Fields of `Names`, as templates know them."""


@dataclass(frozen=True, slots=True)
class Names:
    """One name in every spelling.

    Example: "Gsm8k-Hard" -> snake "gsm8k_hard", pascal "Gsm8kHard", const "GSM8K_HARD", kebab "gsm8k-hard", key
    "gsm8k_hard", words "gsm8k hard"; "qwen3.5" -> snake and key "qwen3_5", pascal "Qwen3_5".
    """

    raw: str
    """As the user wrote it."""
    snake: str
    pascal: str
    const: str
    kebab: str
    key: str
    """What registries and configurations call the unit."""
    words: str
    """Lower-case words for prose."""

    def as_data(self) -> dict[str, str]:
        """For templates."""
        return asdict(self)
