"""Where prompts come from: rows addressed by their position in the run, so that data order needs no state.

`areal.dataset.prompt_source.ShuffledRows` is the implementation; anything else of this shape works too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping


class PromptSource(Protocol):
    """Rows of a run in training order. `row` must be pure: a resumed run asks for the same ordinals again."""

    def __len__(self) -> int:
        """Rows per epoch."""
        ...

    def row(self, ordinal: int, /) -> Mapping[str, Any]:
        """Row number `ordinal` of the run, from 0 without end: epochs follow each other. DataError for a bad row."""
        ...


@runtime_checkable
class IndexedPromptSource(PromptSource, Protocol):
    """A source that also knows where in the dataset a prompt came from; recorded in each trajectory's provenance."""

    def row_index(self, ordinal: int, /) -> int:
        """Index into the dataset."""
        ...
