"""Contract of a dataset loader, and the columns each kind of training needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

if TYPE_CHECKING:
    from datasets import Dataset

DatasetKind = Literal["sft", "rl", "preference"]

REQUIRED_COLUMNS: Final[dict[str, frozenset[str]]] = {
    "preference": frozenset({"chosen_ids", "rejected_ids", "chosen_loss_mask", "rejected_loss_mask"}),
    "rl": frozenset({"messages"}),
    "sft": frozenset({"input_ids", "loss_mask"}),
}
"""Columns a loader of each kind must produce; further columns of an RL row reach the reward as keyword arguments.

rl          messages: a chat [{"role": "user", "content": "8*9="}] or, for a model without chat template, a plain string
sft         input_ids: list[int]; loss_mask: list[int], 1 on tokens to learn. With images also images: list[str], base64
            of their files, and image_places: list[int], before which of input_ids each belongs, without its own tokens
preference  token ids of both answers with the shared prompt, and masks that are 1 on the answer only
"""


class DatasetLoader(Protocol):
    """`get_<name>_{sft,rl}_dataset(path, split, tokenizer, max_length) -> datasets.Dataset`.

    path: folder, file or hub id. split: "train" or "test". tokenizer: a Hugging Face tokenizer. max_length: rows with
    more tokens are dropped and counted in the log; None keeps all. A run always passes None and measures the rows
    itself (`areal.dataset.limits`). Raises DataError with row numbers when rows contradict the schema.
    """

    def __call__(self, path: str, split: str, tokenizer: Any, max_length: int | None = None, /) -> Dataset:
        """Load, check and map one split."""
        ...
