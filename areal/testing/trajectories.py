"""Whether a trajectory says the truth about what the policy sampled.

    assert_trajectory_consistent(trajectory, policy.models)

Everything that can be recomputed is: log-probabilities come from one plain forward of the recorded version's model,
without caches, batching or sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import NO_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import Trajectory


def assert_trajectory_consistent(
    trajectory: Trajectory, models: Mapping[int, Any], *, temperature: float = 1.0, tolerance: float = 1e-4
) -> None:
    """Check masks, versions, turns, and every log-probability against a full forward of its version.

    models: version to CausalModel, e.g. `MemorisedPolicy.models`. temperature: what was sampled with; 1 for greedy.
    Sampling filtered by top_p, top_k or min_new_tokens cannot be recomputed this way. Raises AssertionError naming the
    token.
    """
    assert trajectory.num_sampled, "no token of the trajectory was sampled"
    assert trajectory.loss_mask[0] == 0, "token 0 counts as sampled, but nothing was given to the model before it"
    last_turn, last_version = -1, -1
    for index, sampled in enumerate(trajectory.loss_mask):
        recorded = (trajectory.logprobs[index], trajectory.versions[index], trajectory.turn_ids[index])
        if not sampled:
            expected = (0.0, NO_VERSION, NO_VERSION)
            assert recorded == expected, (
                f"token {index} was not sampled, yet log-probability, version and turn are {recorded}; "
                f"expected {expected}"
            )
            continue
        _, version, turn = recorded
        assert version in models, f"token {index} has version {version}; published were {sorted(models)}"
        assert version >= last_version, f"token {index} has version {version} after one of version {last_version}"
        assert turn - last_turn in {0, 1}, f"token {index} has turn {turn} after turn {last_turn}"
        started = turn == last_turn or not trajectory.loss_mask[index - 1]
        assert started, f"turn {turn} begins at token {index}, right after a sampled token of turn {last_turn}"
        contiguous = turn != last_turn or trajectory.loss_mask[index - 1]
        assert contiguous, f"token {index} continues turn {turn} after tokens that were not sampled"
        last_turn, last_version = turn, version
    _check_logprobs(trajectory, models, temperature, tolerance)


def recomputed_logprobs(tokens: Sequence[int], model: Any, *, temperature: float = 1.0) -> list[float]:
    """Log-probability of each token given those before it, from one forward of `model`; 0 for the first."""
    import torch

    device = next(model.parameters()).device
    ids = torch.tensor(list(tokens), device=device)
    count = len(ids)
    bounds = torch.tensor([0, count], dtype=torch.int32, device=device)
    with torch.no_grad():
        logits = model(ids, torch.arange(count, device=device), bounds, count)
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    return [0.0, *logp[:-1].gather(1, ids[1:, None])[:, 0].tolist()]


def _check_logprobs(trajectory: Trajectory, models: Mapping[int, Any], temperature: float, tolerance: float) -> None:
    for version in sorted(set(trajectory.versions) - {NO_VERSION}):
        expected = recomputed_logprobs(trajectory.tokens, models[version], temperature=temperature)
        for index, recorded in enumerate(trajectory.logprobs):
            if trajectory.versions[index] != version:
                continue
            assert abs(recorded - expected[index]) <= tolerance, (
                f"token {index} (id {trajectory.tokens[index]}, version {version}): log-probability {recorded:.6f} "
                f"was recorded, a forward of that version gives {expected[index]:.6f}"
            )
