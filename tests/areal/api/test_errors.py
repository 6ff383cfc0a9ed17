"""The error tree: categories, exit codes, and faults that survive a worker process."""

from __future__ import annotations

import pickle
import re

import pytest

import areal.api.errors as errors_module
from areal.api import ArealError, FaultError, FaultKind


def all_errors() -> list[type[ArealError]]:
    return [
        value for value in vars(errors_module).values() if isinstance(value, type) and issubclass(value, ArealError)
    ]


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_keeps_kind_and_message_through_a_worker_process(kind):
    fault = pickle.loads(pickle.dumps(FaultError(kind, "row 7: no answer")))
    assert (type(fault), fault.kind, fault.message) == (FaultError, kind, "row 7: no answer")
    assert str(fault) == f"{kind.value}: row 7: no answer"


def test_a_fault_subclass_keeps_its_type_through_a_worker_process():
    assert type(pickle.loads(pickle.dumps(JudgeFault(FaultKind.REWARD_RAISED, "x")))) is JudgeFault


class JudgeFault(FaultError):
    """As user code may derive one."""


def test_only_faults_that_may_pass_are_retried():
    assert {kind for kind in FaultKind if kind.retryable} == {
        FaultKind.ENVIRONMENT_FAILED,
        FaultKind.ENVIRONMENT_TIMEOUT,
        FaultKind.GENERATION_FAILED,
        FaultKind.REWARD_DIED,
        FaultKind.REWARD_RAISED,
        FaultKind.REWARD_TIMEOUT,
    }


@pytest.mark.parametrize("error", all_errors()[1:], ids=lambda error: error.__name__)
def test_an_error_can_be_caught_as_ours_and_by_a_standard_category(error):
    standard = [
        base
        for base in error.__mro__
        if base.__module__ == "builtins" and base not in (BaseException, Exception, object)
    ]
    assert issubclass(error, ArealError)
    assert standard, f"{error.__name__} inherits no standard error"


def test_the_tree_in_the_docstring_has_every_error_with_its_exit_code():
    documented = dict(re.findall(r"\+-- (\w+) +(\d+) ", errors_module.__doc__))
    assert documented == {error.__name__: str(error.exit_code) for error in all_errors()[1:]}
