"""Every name the objective understands, as literal tables: formula, source and defaults. Torch-free; docs are generated
from it.

Notation: R reward, A advantage, l = log pi of the current policy, m mask, n number of policy tokens of a sequence,
r = exp(l - l_prox) importance ratio, w = exp(l_prox - l_behave) behaviour weight, sg stop-gradient. Losses are
minimised. Not here: which names may be combined (`areal.algorithm.spec`) and what they compute (the module of each
table's name).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOTHING: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named building block.

    Example: `Entry(formula="R - mean(R)", source="arXiv 2503.20783")`.
    """

    formula: str
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameters the block takes, with defaults; any other parameter is an error."""


ADVANTAGES: Final[dict[str, Entry]] = {
    "drgrpo": Entry(formula="A = R - mean(R in group)", source="Dr.GRPO, arXiv 2503.20783"),
    "gae": Entry(
        formula="d_t = r_t + gamma V_t+1 - V_t; A_t = d_t + gamma lam A_t+1 over policy tokens; masked tokens are "
        "transparent",
        source="GAE, arXiv 1506.02438; adaptive_lambda and lam_returns: VAPO, arXiv 2504.05118",
        defaults={"adaptive_lambda": None, "gamma": 1.0, "lam": 1.0, "lam_returns": None, "whiten": False},
    ),
    "gae_turn": Entry(
        formula="GAE with one step per turn: V at the turn's first token, r summed over the turn, A broadcast over "
        "its tokens",
        source="GAE, arXiv 1506.02438, on turns",
        defaults={"gamma": 1.0, "lam": 1.0, "whiten": False},
    ),
    "grpo": Entry(
        formula="A = (R - mean(R in group)) / (std(R in group) + eps)",
        source="GRPO, arXiv 2402.03300",
        defaults={"eps": 1e-6, "std": True, "unbiased": True},
    ),
    "maxrl": Entry(formula="A = (R - mu) / mu with mu = mean(R in group); 0 where mu <= 0", source="MaxRL"),
    "opo": Entry(formula="A = R - sum(n R) / sum(n), length-weighted group baseline", source="OPO, arXiv 2505.23585"),
    "passk": Entry(
        formula="best sample of the group: (R_max - R_second) / (std + eps); the others 0",
        source="pass@k training, leave-one-out maximum",
        defaults={"eps": 1e-6, "unbiased": True},
    ),
    "reinforce_pp": Entry(
        formula="G_t = sum_s>=t gamma^(s-t) r_s over policy tokens; A = (G - mean) / sqrt(var + eps) over all tokens "
        "of the batch",
        source="REINFORCE++, arXiv 2501.03262",
        defaults={"eps": 1e-8, "gamma": 1.0, "unbiased": True, "whiten": True},
    ),
    "reinforce_pp_baseline": Entry(
        formula="R - mean(R in group) on every token, then whitened over all tokens of the batch",
        source="REINFORCE++-baseline, arXiv 2501.03262",
        defaults={"eps": 1e-8, "unbiased": True},
    ),
    "rloo": Entry(formula="A = R - mean(R of the other samples of the group)", source="RLOO, arXiv 2402.14740"),
}
"""How rewards become per-token advantages. A group of one and a group of equal rewards give exactly 0 wherever a group
baseline exists.
"""

SURROGATES: Final[dict[str, Entry]] = {
    "cispo": Entry(
        formula="-sg[clip(r, 1 - clip_low, 1 + clip_high)] A l",
        source="CISPO, MiniMax-M1, arXiv 2506.13585",
        defaults={"clip_high": 4.0, "clip_low": 1.0},
    ),
    "dppo": Entry(
        formula="-keep r_mu A with r_mu = exp(l - l_behave); keep = 0 where the step leaves the trust region: A > 0 "
        "and pi above mu by more than dppo_high, or A < 0 and below by more than dppo_low (tv: |pi - mu|; kl: "
        "Bernoulli KL(mu, pi))",
        source="DPPO, arXiv 2602.04879",
        defaults={"dppo_high": 0.2, "dppo_kind": "tv", "dppo_low": 0.2},
    ),
    "gspo": Entry(
        formula="max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)), s = sg[exp(mean_t(l - l_prox))] pi / sg[pi]",
        source="GSPO, arXiv 2507.18071",
        defaults={"clip_high": 4e-4, "clip_low": 3e-4},
    ),
    "ppo": Entry(
        formula="max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)); where A < 0 at most -dual_clip A",
        source="PPO, arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476; dual clip: arXiv 1912.09729",
        defaults={"clip_high": 0.2, "clip_low": 0.2, "dual_clip": None},
    ),
    "reinforce": Entry(
        formula="-A l; importance weights of corrections are pi / pi_behave instead of w",
        source="REINFORCE, Williams 1992",
    ),
    "sapo": Entry(
        formula="-A sigmoid(tau (r - 1)) 4 / tau, tau = sapo_tau_pos where A > 0 else sapo_tau_neg",
        source="SAPO, arXiv 2511.20347",
        defaults={"sapo_tau_neg": 1.05, "sapo_tau_pos": 1.0},
    ),
}
"""Per-token policy losses, before weights and aggregation."""

CORRECTIONS: Final[dict[str, Entry]] = {
    "geometric": Entry(
        formula="keep the sequence where correction_low <= exp(mean_t log w) <= correction_high",
        source="geometric sequence mask",
        defaults={"correction_high": 1.001, "correction_low": 0.999},
    ),
    "icepop": Entry(
        formula="w where correction_low <= w <= correction_high, else the token is dropped",
        source="IcePop, arXiv 2510.18855",
        defaults={"correction_high": 5.0, "correction_low": 0.5},
    ),
    "kpop": Entry(
        formula="keep the token where max(KL_bern(p, q), KL_bern(q, p)) <= correction_high, p = pi_behave, q = pi_prox",
        source="KPop",
        defaults={"correction_high": 2.0},
    ),
    "m2po": Entry(
        formula="drop the tokens with the largest (l_behave - l_prox)^2 of the whole step until their mean is below "
        "correction_high",
        source="M2PO, arXiv 2510.01161",
        defaults={"correction_high": 0.04},
    ),
    "mis": Entry(
        formula="w_i = exp sum_t log w (level sequence) or w (level token); dropped where above correction_high or "
        "below correction_low",
        source="masked importance sampling",
        defaults={"correction_high": 3.0, "correction_level": "sequence", "correction_low": 0.0},
    ),
    "none": Entry(formula="1", source=""),
    "opsm": Entry(
        formula="drop the sequence where A < 0 and mean_t(l_behave - l) > correction_high",
        source="off-policy sequence mask, DeepSeek-V3.2",
        defaults={"correction_high": 1e-4},
    ),
    "seq_mask_tis": Entry(
        formula="min(w, correction_cap) on tokens of sequences where correction_low <= exp(mean_t log w) <= "
        "correction_high",
        source="geometric sequence mask with truncated token weights",
        defaults={"correction_cap": 2.0, "correction_high": 1.001, "correction_low": 0.999},
    ),
    "tis": Entry(
        formula="min(w, correction_high) (level token) or min(exp sum_t log w, correction_high) (level sequence)",
        source="truncated importance sampling",
        defaults={"correction_high": 2.0, "correction_level": "token"},
    ),
}
"""What is done about the distance between the policy that sampled (behave) and the one that trains (prox)."""

AGGREGATIONS: Final[dict[str, Entry]] = {
    "prompt-mean": Entry(formula="(1/P) sum_p (1/N_p) sum_(i in p, t) m l", source="mean over prompts of token means"),
    "seq-mean-token-mean": Entry(formula="(1/S) sum_i (1/n_i) sum_t m l", source="GRPO, GSPO, SAPO papers"),
    "seq-mean-token-sum": Entry(formula="(1/S) sum_i sum_t m l", source="REINFORCE on whole answers"),
    "seq-mean-token-sum-norm": Entry(formula="(1/(S length_norm)) sum_it m l", source="Dr.GRPO, arXiv 2503.20783"),
    "token-mean": Entry(formula="(1/N) sum_it m l", source="DAPO, arXiv 2503.14476"),
    "token-sum": Entry(formula="sum_it m l", source="no normalisation"),
}
"""What "mean" means. N tokens, S sequences with at least one policy token, P prompts, all counted over the whole step.
"""

KL_KINDS: Final[dict[str, Entry]] = {
    "abs": Entry(formula="|l - l_ref|", source="for reports; its gradient is not that of a KL divergence"),
    "k1": Entry(
        formula="l - l_ref",
        source="http://joschu.net/blog/kl-approx.html; right in the reward, zero gradient as a loss",
    ),
    "k2": Entry(formula="(l - l_ref)^2 / 2", source="idem; as a loss its gradient is that of KL(pi, ref)"),
    "k3": Entry(
        formula="exp(l_ref - l) - 1 - (l_ref - l)",
        source="idem; as a loss its gradient is that of KL(ref, pi), as in the GRPO paper",
    ),
    "k3_straight_through": Entry(
        formula="value of k3, gradient of k2", source="low variance and the gradient of KL(pi, ref)"
    ),
}
"""Per-token estimates of the distance to the reference policy."""


def nearest(kind: str, name: object, known: Mapping[str, Any] | frozenset[str]) -> str:
    """Text of the error for an unknown name: the nearest known ones first, then all."""
    near = get_close_matches(str(name), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}known names are {', '.join(sorted(known)) or '(none)'}"


def lookup(kind: str, name: object, table: Mapping[str, Entry]) -> Entry:
    """Entry of `name`; raises ConfigError naming the nearest ones."""
    if not isinstance(name, str) or name not in table:
        raise ConfigError(nearest(kind, name, table))
    return table[name]


def parameters(kind: str, name: str, table: Mapping[str, Entry], given: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
    """Defaults of `name` with `given` on top; raises ConfigError for a parameter the block does not take."""
    defaults = lookup(kind, name, table).defaults
    for key in given:
        if key not in defaults:
            raise ConfigError(nearest(f"parameter of {kind} {name!r},", key, defaults))
    return {**defaults, **given}
