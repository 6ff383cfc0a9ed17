"""The reward `code`: programs in answers against cases of rows, in real processes, and behind the wrapper."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from areal.api import ConfigError, FaultError, FaultKind
from areal.reward import AsyncRewardWrapper
from areal.reward.code import CodeReward
from areal.reward.programs import JAVASCRIPT

SUM = [{"input": "1 2\n", "output": "3"}, {"input": "2 2\n", "output": "4"}, {"input": "-5 5\n", "output": "0"}]
RIGHT = "So:\n```python\nprint(sum(map(int, input().split())))\n```"
TWO_OF_THREE = "```python\na, b = map(int, input().split())\nprint(abs(a) + b)\n```"
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason=f"no node on PATH: {JAVASCRIPT.install}")


@pytest.fixture(scope="module")
def code():
    return CodeReward()


@pytest.fixture(scope="module")
def share():
    return CodeReward(scoring="fraction", limits={"cpu_seconds": 1, "wall_seconds": 3.0}, total_seconds=60)


def ask(reward, completion, **row):
    return reward("", completion, [], [], **{"cases": SUM, "problem_id": 7, **row})


def test_all_or_nothing_stops_at_the_first_failure_and_a_share_does_not(code, share):
    assert ask(code, RIGHT) == 1.0
    assert ask(share, TWO_OF_THREE) == pytest.approx(2 / 3)
    score = code.score(TWO_OF_THREE, cases=[SUM[2], *SUM])
    assert (score.score, len(score.details)) == (0.0, 1)
    assert "wrong output: '10\\n'" in score.details[0]


@pytest.mark.parametrize(
    "completion",
    ["", "print(3)", "```python\nprint(3)", "```rust\nfn main() {}\n```", "```python\n\n```", "```cpp\nx\n```"],
)
def test_an_answer_without_a_program_in_a_wanted_language_is_wrong(code, completion):
    assert ask(code, completion) == 0.0


def test_a_program_that_fails_in_any_way_has_failed_that_case(share):
    program = "n = int(input())\nif n == 1: raise KeyError(n)\nwhile n == 2: __import__('time').sleep(9)\nprint(n)"
    score = share.score(f"```\n{program}\n```", cases=[{"input": str(n), "output": str(n)} for n in (1, 2, 3)])
    assert score.score == pytest.approx(1 / 3)
    assert [why.partition(":")[0].partition(" after ")[0] for why in score.details] == [
        "exit status 1", "killed at the time limit", ""
    ]  # fmt: skip


def test_functions_are_called_and_one_of_several_results_is_enough(code):
    cases = [{"arguments": [[1, 2]], "result": [2, 1]}, {"arguments": [[7]], "results": [7, [7]]}]
    assert ask(code, "```python\ndef f(a):\n    return a[::-1]\n```", cases=json.dumps(cases), fn_name="f") == 1.0
    assert ask(code, "```python\ndef f(a):\n    return a\n```", cases=cases, fn_name="f") == 0.0


PERMUTATION = "def check(input, output, expected):\n    return sorted(output.split()) == sorted(expected.split())"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("checker", "score"),
    [
        (PERMUTATION, 1.0),
        ("def check(input, output, expected):\n    return 0.25", 0.25),
        pytest.param("def check(i, o, e):\n    return i == 'x' and e == 'a b'", 1.0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_rows_checker_decides(share, checker, score):
    cases = [{"input": "x", "output": "a b"}]
    assert ask(share, "```python\nprint('b a')\n```", cases=cases, checker=checker) == score


@pytest.mark.parametrize(
    "checker",
    [
        "def check(i, o, e):\n    return 2",
        pytest.param("def check(i, o, e):\n    return 1 / 0", marks=pytest.mark.exhaustive),
        pytest.param("x =", marks=pytest.mark.exhaustive),
    ],
)
def test_a_checker_that_fails_is_the_rows_fault(code, checker):
    with pytest.raises(FaultError, match="checker") as caught:
        ask(code, "```python\nprint(1)\n```", cases=SUM[:1], checker=checker)
    assert caught.value.kind is FaultKind.DATA_INVALID


@pytest.mark.exhaustive
def test_an_own_checker_gets_input_output_and_what_was_expected(tmp_path, monkeypatch):
    (tmp_path / "own_checks.py").write_text("def longer(arguments, result, expected):\n    return result > expected\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = CodeReward(checker="own_checks:longer")
    cases = [{"arguments": [2], "result": 3}]
    assert ask(own, "```python\ndef f(n):\n    return n * 2\n```", cases=cases, fn_name="f") == 1.0
    assert ask(own, "```python\ndef f(n):\n    return n + 1\n```", cases=cases, fn_name="f") == 0.0


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"cases": None}, "expected a list"),
        ({"cases": "["}, "not JSON"),
        ({"fn_name": "f"}, "both or neither"),
        ({"language": "pyhton"}, "did you mean 'python'"),
        ({"language": "cpp"}, "the row is in cpp, and `languages` has python"),
        ({"time_limit": -1}, "time_limit is -1"),
        ({"memory_limit": "256 MB"}, "memory_limit is '256 MB'"),
    ],
)
def test_a_row_that_makes_no_sense_is_a_fault_of_the_row(code, row, why):
    with pytest.raises(FaultError, match=why) as caught:
        ask(code, RIGHT, **row)
    assert caught.value.kind is FaultKind.DATA_INVALID


@pytest.mark.sample(1)
@pytest.mark.parametrize("total_seconds", [0.2, 0.002], ids=["within a program", "before a program"])
def test_a_total_that_is_too_short_is_a_fault_and_no_score(total_seconds):
    hasty = CodeReward(total_seconds=total_seconds)
    with pytest.raises(FaultError, match="total_seconds") as caught:
        ask(hasty, "```python\nimport time\ntime.sleep(0.15)\nprint(3)\n```", cases=SUM[:1] * 9)
    assert caught.value.kind is FaultKind.REWARD_TIMEOUT


@pytest.mark.exhaustive
def test_a_rows_time_limit_goes_before_the_option(code):
    asleep = "```python\nwhile True:\n    pass\n```"
    score = code.score(asleep, cases=SUM[:1], time_limit=0.5)
    assert (score.score, "time limit" in score.details[0]) == (0.0, True)


@pytest.mark.exhaustive
@needs_node
def test_the_label_of_the_block_chooses_the_language():
    both = CodeReward(languages=["python", "javascript"])
    script = "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number); console.log(a + b)"
    assert ask(both, f"```js\n{script}\n```", cases=SUM[:1]) == 1.0
    assert ask(both, f"```\n{script}\n```", cases=SUM[:1]) == 0.0
    assert ask(both, f"```\n{script}\n```", cases=SUM[:1], language="javascript") == 1.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"languages": ["pascal"]}, "language 'pascal' is unknown"),
        ({"languages": []}, "languages is empty"),
        ({"scoring": "some"}, "scoring is 'some'"),
        ({"limits": {"cpu": 1}}, "its names are cpu_seconds"),
        ({"limits": {"cpu_seconds": 0}}, "expected seconds above 0"),
        ({"total_seconds": 0}, "total_seconds 0"),
        ({"compare": "fuzzy"}, "compare is 'fuzzy'"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_the_start(options, why):
    with pytest.raises(ConfigError, match=why):
        CodeReward(**options)


def test_an_absent_compiler_is_refused_at_the_start(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cpp need 'g\+\+', which is not on PATH; install it"):
        CodeReward(languages=["python", "cpp"])


@pytest.mark.exhaustive
def test_it_runs_in_a_reward_process_and_says_there_what_is_absent(monkeypatch, tmp_path):
    async def scores():
        reward = AsyncRewardWrapper("code", options={"scoring": "fraction"}, timeout_seconds=60)
        try:
            return await reward("", RIGHT, [], [], cases=json.dumps(SUM))
        finally:
            reward.close()

    assert asyncio.run(scores()) == 1.0
    monkeypatch.setenv("PATH", str(tmp_path))
    reward = AsyncRewardWrapper("code", options={"languages": ["cpp"]}, timeout_seconds=60)
    try:
        with pytest.raises(ConfigError, match="not on PATH; install it"):
            reward.start()
    finally:
        reward.close()
