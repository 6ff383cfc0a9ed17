"""Records refuse values that would silently train on the wrong thing."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal.api import NO_VERSION, Fault, FaultKind, ModelResponse, PromptGroup, Provenance, StopReason, Trajectory

EXAMPLE = {
    "tokens": [5, 9, 2, 11, 1],
    "loss_mask": [0, 0, 0, 1, 1],
    "logprobs": [0.0, 0.0, 0.0, -0.7, -0.1],
    "versions": [-1, -1, -1, 4, 4],
    "turn_ids": [-1, -1, -1, 0, 0],
    "reward": 1.0,
    "stop_reason": StopReason.STOP,
}


def trajectory(**changes) -> Trajectory:
    return Trajectory(**{**EXAMPLE, **changes})


def test_the_documented_example_is_accepted_and_counts_its_sampled_tokens():
    record = trajectory()
    assert (record.num_sampled, record.head_version, record.truncated) == (2, 4, False)


@pytest.mark.parametrize("field", ["loss_mask", "logprobs", "versions", "turn_ids"])
@pytest.mark.parametrize("change", [lambda values: values[:-1], lambda values: [*values, 0]])
def test_a_per_token_list_of_another_length_is_refused_by_name(field, change):
    with pytest.raises(ValueError, match=rf"{field} has \d entries for 5 tokens"):
        trajectory(**{field: change(EXAMPLE[field])})


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(ValueError, match="expected a finite number"):
        trajectory(reward=reward)


@pytest.mark.parametrize("logprob", [math.nan, -math.inf, math.inf, 0.01, 1.0])
def test_a_sampled_token_needs_a_finite_log_probability_that_is_not_positive(logprob):
    with pytest.raises(ValueError, match=r"logprobs\[4\]"):
        trajectory(logprobs=[0.0, 0.0, 0.0, -0.7, logprob])


def test_a_log_probability_may_exceed_zero_by_rounding_only():
    assert trajectory(logprobs=[0.0, 0.0, 0.0, -0.7, 1e-6]).logprobs[4] == 1e-6


def test_log_probabilities_off_the_mask_are_not_judged():
    assert trajectory(logprobs=[math.nan, 3.0, 0.0, -0.7, -0.1]).num_sampled == 2


def test_a_sampled_token_without_a_policy_version_is_refused():
    with pytest.raises(ValueError, match="token 3 was sampled but has no policy version"):
        trajectory(versions=[-1, -1, -1, NO_VERSION, 4])


def test_the_head_version_is_that_of_the_oldest_sampled_token():
    assert trajectory(versions=[0, 0, 0, 7, 5]).head_version == 5  # the prompt's entries do not count


def test_without_sampled_tokens_there_is_no_head_version():
    record = trajectory(loss_mask=[0, 0, 0, 0, 0])
    assert (record.head_version, record.num_sampled) == (NO_VERSION, 0)


@pytest.mark.parametrize(("reason", "truncated"), [(reason, reason is StopReason.LENGTH) for reason in StopReason])
def test_only_a_spent_token_budget_counts_as_truncation(reason, truncated):
    assert trajectory(stop_reason=reason).truncated is truncated


def test_stamping_gives_a_copy_with_identity_and_leaves_the_original():
    record = trajectory()
    stamped = record.stamped(group_id=12, sample_index=3, provenance=Provenance(dataset="gsm8k", row=17))
    assert (stamped.group_id, stamped.sample_index, stamped.provenance.row) == (12, 3, 17)
    assert (record.group_id, record.sample_index) == (-1, 0)
    assert stamped.tokens == record.tokens


@pytest.mark.parametrize("field", ["tokens", "loss_mask", "logprobs", "versions", "turn_ids"])
def test_a_list_that_was_changed_in_place_is_refused_when_the_executor_stamps_it(field):
    record = trajectory(**{field: [*EXAMPLE[field]]})
    getattr(record, field).append(0)
    with pytest.raises(ValueError, match=r"has \d entries for \d tokens"):
        record.stamped(group_id=12, sample_index=3, provenance=Provenance())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Trajectory):
    best: ClassVar[float] = 1.0
    share: float = 0.5


def test_stamping_keeps_the_fields_of_a_subclass_and_leaves_its_class_variables_alone():
    stamped = Scored(**EXAMPLE, share=0.25).stamped(group_id=12, sample_index=3, provenance=Provenance())
    assert (type(stamped), stamped.share, stamped.group_id) == (Scored, 0.25, 12)


def test_records_cannot_be_changed_after_their_check():
    with pytest.raises(dataclasses.FrozenInstanceError):
        trajectory().reward = math.nan


def test_records_survive_the_trip_to_another_process():
    group = PromptGroup(
        ordinal=3,
        admitted_version=4,
        trajectories=(trajectory(text={"completion": "72"}),),
        faults=(Fault(kind=FaultKind.REWARD_TIMEOUT, message="15 s", attempt=1),),
    )
    assert pickle.loads(pickle.dumps(group)) == group


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.floats(max_value=0.0, min_value=-100.0), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    )
)
def test_derived_values_agree_with_their_definition_on_any_valid_record(rows):
    mask = [sampled for sampled, _, _ in rows]
    record = trajectory(
        tokens=list(range(len(rows))),
        loss_mask=mask,
        logprobs=[logprob if sampled else 0.0 for sampled, logprob, _ in rows],
        versions=[version if sampled else NO_VERSION for sampled, _, version in rows],
        turn_ids=[0 if sampled else NO_VERSION for sampled in mask],
    )
    sampled_versions = [version for sampled, _, version in rows if sampled]
    assert record.num_sampled == len(sampled_versions)
    assert record.head_version == (min(sampled_versions) if sampled_versions else NO_VERSION)


@pytest.mark.parametrize("field", ["output_tokens", "output_logprobs", "output_versions"])
def test_a_response_whose_lists_disagree_is_refused(field):
    values = {"output_tokens": [11, 1], "output_logprobs": [-0.7, -0.1], "output_versions": [4, 4]}
    values[field] = values[field][:1]
    with pytest.raises(ValueError, match="expected equal counts"):
        ModelResponse(input_tokens=[5], stop_reason=StopReason.STOP, **values)
