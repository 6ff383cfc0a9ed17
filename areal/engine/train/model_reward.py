"""A trained reward model as a reward function: `areal.reward` runs it in a process of its own, like any other.

    reward:
      score: {path: areal.engine.train.model_reward:ModelReward, options: {path: runs/hhrlhf/reward_model/final}}

The model is loaded once per worker process, before its first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.preference import final_scores
from areal.api import ConfigError, DataError
from areal.hub.download import local_folder
from areal.models.reward_model import load_reward_model

if TYPE_CHECKING:
    from collections.abc import Sequence


class ModelReward:
    """Scores a completion after its prompt with the model in `path`.

    score = ModelReward("runs/hhrlhf/reward_model/final")
    score(prompt, completion, prompt_ids, completion_ids)        # 1.37
    """

    def __init__(
        self,
        path: str,
        *,
        own_tokenizer: bool = False,
        max_length: int | None = None,
        scale: float = 1.0,
        device: str = "cpu",
        dtype: str = "float32",
        num_threads: int = 1,
    ) -> None:
        """path: what `kind: reward_model` wrote, or any sequence classifier with one label of a family we have.

        own_tokenizer: encode the texts with the tokenizer in `path`, for a policy whose tokens mean something else;
        otherwise the tokens are taken as they were sampled. max_length: sequences beyond it are refused, which makes
        them faults and no scores; None: those beyond the model's positions. scale: multiplies the score.

        Raises ConfigError for unusable settings, ModelError when the folder holds no reward model.
        """
        if not path or not local_folder(path).is_dir():
            raise ConfigError(
                f"ModelReward: no folder {path!r}; give that of a reward model, or org/name@revision of the hub, "
                f"in the option path"
            )
        if dtype not in ("bfloat16", "float32", "float64"):
            raise ConfigError(f"ModelReward: dtype is {dtype!r}, expected bfloat16, float32 or float64")
        # Workers are many and cores are few.
        torch.set_num_threads(max(1, num_threads))
        self._path = path
        self._scale = scale
        self._model = load_reward_model(path, dtype=getattr(torch, dtype), device=device).eval().requires_grad_(False)
        self._device = torch.device(device)
        self._max_length = max_length or int(self._model.args.max_position_embeddings)
        self._tokenizer = _load_tokenizer(path) if own_tokenizer else None

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], /, **_: Any
    ) -> float:
        """Return the score. Raises DataError for tokens the model does not have and for sequences that are too long."""
        tokens = [*prompt_ids, *completion_ids] if self._tokenizer is None else self._encode(prompt, completions)
        self._check(tokens)
        with torch.inference_mode():
            ids = torch.tensor(tokens, device=self._device)
            bounds = torch.tensor([0, len(tokens)], dtype=torch.int32, device=self._device)
            positions = torch.arange(len(tokens), device=self._device)
            values = self._model(ids, positions, bounds, len(tokens))
            last = torch.tensor([len(tokens)], device=self._device)
            return float(final_scores(values[None], last)) * self._scale

    def _encode(self, prompt: str, completion: str) -> list[int]:
        from areal.dataset.encoding import encode_answer, encode_text

        return [*encode_text(prompt, self._tokenizer), *encode_answer(completion, self._tokenizer)]

    def _check(self, tokens: Sequence[int]) -> None:
        vocabulary = self._model.args.vocab_size
        if not tokens or max(tokens) >= vocabulary:
            raise DataError(
                f"reward model {self._path}: got {len(tokens)} tokens with ids up to {max(tokens, default=-1)}, its "
                f"vocabulary has {vocabulary}; set own_tokenizer when the policy has another tokenizer"
            )
        if len(tokens) > self._max_length:
            raise DataError(
                f"reward model {self._path}: {len(tokens)} tokens are more than its {self._max_length}; lower "
                f"gconfig.max_new_tokens or train_dataset.max_length"
            )


def _load_tokenizer(path: str) -> Any:
    from areal.dataset.encoding import load_tokenizer

    return load_tokenizer(path)
