r"""HH-RLHF: pairs of answers to one conversation, of which people preferred the first (Bai et al. 2022,
arXiv:2204.05862; MIT).

A raw row holds two transcripts that share everything but (usually) the last answer:

    {"chosen":   "\n\nHuman: How many calories are in a cup of cauliflower?\n\nAssistant: ... about 30 calories.",
     "rejected": "\n\nHuman: How many calories are in a cup of cauliflower?\n\nAssistant: Cauliflower contains 80 ..."}

A row becomes token ids of both transcripts with a mask that is 1 on what differs: everything after the last
"\n\nAssistant:" that both share, and the end-of-sequence token. Transcripts keep their own markup, also for
tokenizers with a chat template, because the part after the shared prompt may itself hold several turns. path "" reads
a few packaged harmless rows; the whole set is the hub id "Anthropic/hh-rlhf".
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from areal.dataset.building import preference_dataset
from areal.dataset.reading import FIXTURES, read_rows
from areal.dataset.schema import complain, require_texts

if TYPE_CHECKING:
    from datasets import Dataset

_ANSWER_MARK: Final = "\n\nAssistant:"


def get_hhrlhf_preference_dataset(path: str, split: str, tokenizer: Any, max_length: int | None = None) -> Dataset:
    """Return `chosen_ids`, `rejected_ids`, `chosen_loss_mask`, `rejected_loss_mask`.

    Pairs with an empty or equal answer carry no preference; they are dropped and counted in the log, as are pairs of
    which one side has more than `max_length` tokens.
    """
    raw = read_rows(path or str(FIXTURES / "hhrlhf"), split)
    require_texts(raw, "chosen", "rejected")
    pairs = [split_pair(row["chosen"], row["rejected"]) for row in raw.rows]
    complain(
        raw.source,
        (
            (raw.where(i), "" if prompt else f"chosen and rejected share no prompt that ends in {_ANSWER_MARK!r}")
            for i, (prompt, _, _) in enumerate(pairs)
        ),
    )
    return preference_dataset(raw, pairs, tokenizer, max_length)


def split_pair(chosen: str, rejected: str) -> tuple[str, str, str]:
    """Return (shared prompt, chosen answer, rejected answer); the prompt is "" without a shared "\\n\\nAssistant:"."""
    num_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    end = chosen.rfind(_ANSWER_MARK, 0, num_shared)
    if end < 0:
        return "", chosen, rejected
    end += len(_ANSWER_MARK)
    return chosen[:end], chosen[end:], rejected[end:]
