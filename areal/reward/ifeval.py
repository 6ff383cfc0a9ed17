r"""IFEval: whether a completion follows the verifiable instructions of its row. What each one asks: `instructions`.

    row {"instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
         "kwargs": [{}, {"relation": "at least", "num_words": 2}]}

    completion "Two words."                           -> 1.0
    completion "One, two"                             -> 0.0, or 0.5 with scoring: fraction
    completion ""                                     -> 0.0
    an unknown instruction, arguments missing         -> FaultError(DATA_INVALID): the row is at fault

Rows are those of the set "google/IFEval"; `kwargs` may also be JSON text. With mode: loose, as published, a text is
also tried without its first line, its last line, both, and each of these without asterisks; an instruction is followed
when one of the eight follows it.
"""

from __future__ import annotations

import json
from typing import Any, Final

from areal.api import ConfigError, FaultError, FaultKind
from areal.reward.instructions import follows

_SCORINGS: Final = ("all", "fraction")
_MODES: Final = ("loose", "strict")


class IFEvalReward:
    """Scores how many instructions of a row are followed.

    scoring: `all` gives 1.0 when every instruction is followed, else 0.0; `fraction` gives the share that is.
    mode: `strict` takes the text as it is; `loose` as above.
    """

    def __init__(self, *, scoring: str = "all", mode: str = "strict") -> None:
        if scoring not in _SCORINGS or mode not in _MODES:
            raise ConfigError(
                f"scoring is {scoring!r} and mode {mode!r}, expected one of {', '.join(_SCORINGS)} and one of "
                f"{', '.join(_MODES)}"
            )
        self._fraction, self._loose = scoring == "fraction", mode == "loose"

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
    ) -> float:
        """Return the score of one completion. Raises FaultError(DATA_INVALID) when the row is at fault."""
        try:
            followed = [
                any(follows(name, text, arguments) and bool(text.strip()) for text in self._variants(completions))
                for name, arguments in _instructions_of(data)
            ]
        except ConfigError:
            raise
        except ValueError as error:
            raise FaultError(FaultKind.DATA_INVALID, str(error)) from error
        return sum(followed) / len(followed) if self._fraction else float(all(followed))

    def _variants(self, text: str) -> list[str]:
        if not self._loose:
            return [text]
        lines = text.split("\n")
        cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
        return [*cut, *(variant.replace("*", "") for variant in cut)]


def _instructions_of(data: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return names and arguments of a row. Raises ValueError when they do not fit together."""
    names, arguments = data.get("instruction_id_list"), data.get("kwargs")
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(names, list) or not names or not isinstance(arguments, list) or len(names) != len(arguments):
        raise ValueError(
            f"instruction_id_list is {names!r:.80} and kwargs {arguments!r:.80}, expected lists of equal length"
        )
    return [(str(name), dict(given or {})) for name, given in zip(names, arguments, strict=True)]
