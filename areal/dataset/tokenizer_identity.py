"""Whether two tokenizers give the same meaning to the same ids: what one model samples, another can then score.

Compared is what ids stand for: the vocabulary, which tokens are control tokens, and the end of a sequence. How text is
cut into tokens is not compared, since ids that were sampled are never tokenised again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from areal.api import ConfigError


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Return a digest that is equal for tokenizers whose ids mean the same."""
    text = json.dumps([sorted(tokenizer.get_vocab().items()), _control(tokenizer), tokenizer.eos_token_id])
    return hashlib.sha256(text.encode()).hexdigest()


def check_same_tokenizer(student: Any, teacher: Any, *, where: str) -> None:
    """Raise ConfigError, which names the first difference, unless both give the same meaning to ids.

    where: key of the configuration that names the teacher.
    """
    if tokenizer_fingerprint(student) == tokenizer_fingerprint(teacher):
        return
    raise ConfigError(
        f"the teacher has another tokenizer than the trained model: {_difference(student, teacher)}. It would score "
        f"ids that mean something else to it",
        where=where,
        fix="take a teacher of the same family; if only the end token differs, set model.tokenizer_path to it",
    )


def _difference(student: Any, teacher: Any) -> str:
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    if len(ours) != len(theirs):
        return f"{len(theirs)} tokens against {len(ours)}"
    names = {token: index for index, token in theirs.items()}
    for token, index in sorted(ours.items(), key=lambda item: item[1]):
        if names.get(index) != token:
            return f"id {index} is {names.get(index)!r} to it and {token!r} to the trained model"
    if student.eos_token_id != teacher.eos_token_id:
        return f"it ends sequences with id {teacher.eos_token_id}, the trained model with {student.eos_token_id}"
    return f"its control tokens are {_control(teacher)}, those of the trained model {_control(student)}"


def _control(tokenizer: Any) -> list[int]:
    """Ids of control tokens. Padding is not among them: it stands for nothing."""
    return sorted(set(tokenizer.all_special_ids) - {tokenizer.pad_token_id})
