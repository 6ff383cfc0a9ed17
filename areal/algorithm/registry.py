"""Names of the blocks that objectives are made of, one table per kind.

Targets are strings, so that reading a table loads nothing. Every class derives from the contract of its kind and holds
its own fields, formula, source and computation.
"""

from __future__ import annotations

from typing import Final

ADVANTAGES: Final[dict[str, str]] = {
    "drgrpo": "areal.algorithm.advantages:DrGRPO",
    "gae": "areal.algorithm.advantages:GAE",
    "gae_turn": "areal.algorithm.advantages:TurnGAE",
    "grpo": "areal.algorithm.advantages:GRPO",
    "maxrl": "areal.algorithm.advantages:MaxRL",
    "opo": "areal.algorithm.advantages:OPO",
    "outcome_plus_turn": "areal.algorithm.turn_credit:OutcomePlusTurn",
    "passk": "areal.algorithm.advantages:PassK",
    "reinforce_pp": "areal.algorithm.advantages:ReinforcePP",
    "reinforce_pp_baseline": "areal.algorithm.advantages:ReinforcePPBaseline",
    "rloo": "areal.algorithm.advantages:RLOO",
    "turn_return": "areal.algorithm.turn_credit:TurnReturn",
}

AGGREGATIONS: Final[dict[str, str]] = {
    "prompt-mean": "areal.algorithm.aggregations:PromptMean",
    "seq-mean-token-mean": "areal.algorithm.aggregations:SequenceTokenMean",
    "seq-mean-token-sum": "areal.algorithm.aggregations:SequenceTokenSum",
    "seq-mean-token-sum-norm": "areal.algorithm.aggregations:SequenceTokenSumNorm",
    "token-mean": "areal.algorithm.aggregations:TokenMean",
    "token-sum": "areal.algorithm.aggregations:TokenSum",
}

CORRECTIONS: Final[dict[str, str]] = {
    "geometric": "areal.algorithm.corrections:GeometricMask",
    "icepop": "areal.algorithm.corrections:IcePop",
    "kpop": "areal.algorithm.corrections:KPop",
    "m2po": "areal.algorithm.corrections:M2PO",
    "mis": "areal.algorithm.corrections:MIS",
    "none": "areal.algorithm.corrections:NoCorrection",
    "opsm": "areal.algorithm.corrections:OPSM",
    "seq_mask_tis": "areal.algorithm.corrections:MaskedTIS",
    "tis": "areal.algorithm.corrections:TIS",
}

SURROGATES: Final[dict[str, str]] = {
    "cispo": "areal.algorithm.surrogates:CISPO",
    "dppo": "areal.algorithm.surrogates:DPPO",
    "gspo": "areal.algorithm.surrogates:GSPO",
    "ppo": "areal.algorithm.surrogates:PPO",
    "reinforce": "areal.algorithm.surrogates:Reinforce",
    "sapo": "areal.algorithm.surrogates:SAPO",
}
