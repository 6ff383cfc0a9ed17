"""Solutions of the first task of each skill, and ways of doing it wrong.

The broken solutions are what agents really hand in: nothing at all, half of it, the right thing in the wrong place, a
check that was silenced instead of a problem that was solved.
"""

from __future__ import annotations

from task_steps import commit, edit, nothing, ours, remove, write

ENTRY = '    "letters": "areal.reward.letters:letters_reward",\n'
SPANS_TEST = '''"""Delays between attempts."""

import pytest

from areal.utils.backoff import delays


def test_each_delay_is_twice_the_one_before_up_to_the_limit():
    assert delays(5, 1.0, 5.0) == [1.0, 2.0, 4.0, 5.0]


def test_one_attempt_waits_for_nothing():
    assert delays(1, 1.0, 5.0) == []


@pytest.mark.parametrize(("attempts", "first"), [(0, 1.0), (2, 0.0), (2, -1.0)])
def test_what_makes_no_sense_is_refused(attempts, first):
    with pytest.raises(ValueError, match="expected"):
        delays(attempts, first, 5.0)
'''
REVIEW = """\
areal/workflow/patient.py:22 HIGH: time.sleep blocks the event loop and so every episode; await asyncio.sleep.
areal/workflow/patient.py:21 HIGH: the row of one episode on the instance that all share; use a local name.
areal/reward/close.py:15 HIGH: a failure becomes the score 0.0; let it raise.
"""
CHINESE = """
## 等待掉队者

在 `rollout.consume` 是 `fifo` 的时候, 一个批次最多等它的最后一个 prompt 45 秒。
这样做的代价写在[基准测试](../benchmarks.md)里。
"""


def before_mark(text):
    return text[: text.index("\n<!-- areal-docs follows")]


def add_reward(workspace):
    ours(workspace, "areal-new", "reward", "letters", "--style", "choice", "--letters", "A-E", "--no-test")


def add_dataset(workspace):
    ours(workspace, "areal-new", "dataset", "trivia", "--from", "rows.jsonl", "--no-test")


def add_workflow(workspace):
    ours(workspace, "areal-new", "workflow", "second-try", "--style", "multi_turn", "--max-turns", "2", "--no-test")


def add_environment(workspace):
    ours(workspace, "areal-new", "environment", "number-game", "--max-steps", "6", "--no-test")


def add_model(workspace):
    ours(workspace, "areal-new", "model", "llama", "--no-test")


def add_unit_tests(workspace):
    write(workspace, "tests/areal/utils/test_backoff.py", SPANS_TEST)


def commit_both(workspace):
    commit(workspace, "feat(reward): count the boxes of a completion", "areal/reward/math_verify.py")
    commit(workspace, "docs(benchmarks): say what the figures are", "docs/benchmarks.md")


def review(workspace):
    write(workspace, "REVIEW.md", REVIEW)


def mend_workflow(workspace):
    path = "areal/workflow/patient.py"
    edit(workspace, path, "import time\n", "import asyncio\n")
    edit(workspace, path, "        self.row = data\n        time.sleep(", "        await asyncio.sleep(")
    edit(workspace, path, "self.row)", "data)")


def write_checklist(workspace):
    ours(workspace, "areal-audit", "datasets", "--write")


def translate(workspace):
    text = workspace.path("docs/zh/concepts.md").read_text(encoding="utf-8")
    write(workspace, "docs/zh/concepts.md", before_mark(text) + CHINESE + text[len(before_mark(text)) :])
    ours(workspace, "areal-docs", "zh-mark", "docs/zh/concepts.md")


def copy_the_english(workspace):
    text = workspace.path("docs/zh/concepts.md").read_text(encoding="utf-8")
    english = workspace.path("docs/concepts.md").read_text(encoding="utf-8")
    section = "\n" + english[english.index("## Waiting for stragglers") :]
    write(workspace, "docs/zh/concepts.md", before_mark(text) + section + text[len(before_mark(text)) :])


def score_failures(workspace):
    path = "areal/reward/letters.py"
    text = workspace.path(path).read_text(encoding="utf-8")
    start = text.index("        raise ValueError(")
    write(workspace, path, text[:start] + "        return 0.0\n" + text[text.index("\n", start) + 1 :])


def one_commit_for_all(workspace):
    commit(workspace, "feat(reward): count boxes, and say what figures are", ".")


def odd_messages(workspace):
    commit(workspace, "added a function", "areal/reward/math_verify.py")
    commit(workspace, "docs(benchmarks): say what the figures are", "docs/benchmarks.md")


def half_of_it(workspace):
    commit(workspace, "feat(reward): count the boxes of a completion", "areal/reward/math_verify.py")


def toothless(workspace):
    text = SPANS_TEST.replace("assert delays(5, 1.0, 5.0) == [1.0, 2.0, 4.0, 5.0]", "assert delays(5, 1.0, 5.0)")
    write(workspace, "tests/areal/utils/test_backoff.py", text)


def mock_it(workspace):
    write(workspace, "tests/areal/utils/test_backoff.py", SPANS_TEST + "# unittest.mock would do as well\n")


def share_the_row(workspace):
    wait = "        await asyncio.sleep(self.seconds)\n"
    shared = f"        vars(self)['kept'] = data\n{wait}        data = vars(self)['kept']\n"
    edit(workspace, "areal/workflow/patient.py", wait, shared)


def propose(workspace):
    ours(workspace, "areal-pr", "create", "--title", "feat(utils): overlap and width of spans", "--yes", "--json")


def push_as_it_is(workspace):
    ours(workspace, "git", "push", "-q", "-f", "origin", "spans")


def push_over_main(workspace):
    ours(workspace, "git", "push", "-q", "-f", "origin", "spans:main", "spans:spans")


def lose_the_first_commit(workspace):
    ours(workspace, "git", "reset", "-q", "--hard", "main")
    write(workspace, "areal/utils/spans.py", "def width(span):\n    return span[1] - span[0]\n")
    commit(workspace, "feat(utils): width of spans", "areal/utils/spans.py")
    ours(workspace, "git", "push", "-q", "-f", "origin", "spans")


def push_a_bad_message(workspace):
    ours(workspace, "git", "reset", "-q", "--soft", "main")
    ours(workspace, "git", "restore", "--staged", "--worktree", "docs/benchmarks.md")
    ours(workspace, "git", "commit", "-q", "-m", "spans")
    ours(workspace, "git", "push", "-q", "-f", "origin", "spans")


GOOD = {
    "add-dataset/1": add_dataset,
    "add-environment/1": add_environment,
    "add-reward/1": add_reward,
    "add-unit-tests/1": add_unit_tests,
    "add-workflow/1": add_workflow,
    "commit-conventions/1": commit_both,
    "create-pr/1": propose,
    "debug-distributed/1": mend_workflow,
    "review-pr/1": review,
    "translate-doc-zh/1": translate,
}
SLOW_GOOD = {"add-model/1": add_model, "upgrade-deps/1": write_checklist}
"""Their scripted solutions analyse a model, or the source of another package."""
BROKEN = {
    "add-dataset/1": [
        ("nothing", nothing, "DATASETS has the entry trivia_rl"),
        (
            "rows of its own",
            lambda w: write(w, "areal/dataset/fixtures/trivia/train.jsonl", '{"question": "1+1?", "answer": "2"}\n'),
            "Packaged rows are rows of the quiz",
        ),
    ],
    "add-environment/1": [
        ("nothing", nothing, "ENVIRONMENTS has the entry number_game"),
        (
            "it blocks",
            lambda w: edit(
                w, "areal/environment/number_game.py", ") -> StepResult:\n", ") -> StepResult:\n        time.sleep(1)\n"
            ),
            "Its steps are awaited",
        ),
        (
            "nothing depends on the seed",
            lambda w: edit(w, "areal/environment/number_game.py", "random.Random(seed)", "random.Random()"),
            "The command line plays it",
        ),
    ],
    "add-model/1": [
        ("nothing", nothing, "MODELS has the entry llama"),
        (
            "an entry that leads to another family",
            lambda w: edit(
                w, "areal/models/registry.py", '    "qwen2":', '    "llama": "areal.models.qwen2:SPEC",\n    "qwen2":'
            ),
            "MODELS has the entry llama",
        ),
        (
            "a test that is skipped",
            lambda w: write(w, "tests/areal/models/test_llama.py", "import pytest\n\npytest.skip('logits')\n"),
            "The test of the family compares logits",
        ),
        (
            "a block that was changed to fit",
            lambda w: edit(w, "areal/models/blocks/__init__.py", '"""', '"""Looser. '),
            "No tolerance, no block",
        ),
    ],
    "add-reward/1": [
        ("nothing", nothing, "REWARDS has the entry letters"),
        ("not registered", lambda w: edit(w, "areal/reward/registry.py", ENTRY, ""), "REWARDS has the entry letters"),
        ("a failure is a score", score_failures, "A row without a usable letter raises"),
        (
            "the first letter counts",
            lambda w: edit(w, "areal/reward/letters.py", "stated[-1]", '"A"'),
            "The letter that a completion ends with",
        ),
        ("no test", lambda w: remove(w, "tests/areal/reward/test_letters.py"), "The reward has a test of its own"),
        ("a helper elsewhere", lambda w: write(w, "areal/letters.py", ""), "Nothing else was changed"),
    ],
    "add-unit-tests/1": [
        ("nothing", nothing, "The tests are where the package is mirrored"),
        ("tests that cannot fail", toothless, "They fail when a promise"),
        ("a mock", mock_it, "The tests are where the package is mirrored"),
        (
            "the code was changed",
            lambda w: edit(w, "areal/utils/backoff.py", "first <= 0", "first < 0"),
            "Nothing else was changed",
        ),
    ],
    "add-workflow/1": [
        ("nothing", nothing, "WORKFLOWS has the entry second_try"),
        (
            "it blocks",
            lambda w: edit(
                w, "areal/workflow/second_try.py", ") -> Trajectory:\n", ") -> Trajectory:\n        time.sleep(1)\n"
            ),
            "Its episodes are awaited",
        ),
    ],
    "commit-conventions/1": [
        ("nothing", nothing, "There are two commits"),
        ("one commit", one_commit_for_all, "There are two commits"),
        ("odd messages", odd_messages, "There are two commits"),
        ("half of it", half_of_it, "Nothing is left uncommitted"),
    ],
    "create-pr/1": [
        ("nothing", nothing, "The branch is on the remote"),
        ("as it is", push_as_it_is, "The branch is on the remote"),
        ("a bad message", push_a_bad_message, "The message of that commit conforms"),
        ("a lost commit", lose_the_first_commit, "Nothing of the work is lost"),
        ("over main", push_over_main, "The main of the remote"),
    ],
    "debug-distributed/1": [
        ("nothing", nothing, "The wait no longer blocks"),
        (
            "the wait was taken out",
            lambda w: edit(w, "areal/workflow/patient.py", "        await asyncio.sleep(self.seconds)\n", ""),
            "The wait no longer blocks",
        ),
        (
            "the row is still shared",
            share_the_row,
            "Episodes overlap, and each keeps its own row",
        ),
    ],
    "review-pr/1": [
        ("nothing", nothing, "The sleep that blocks"),
        (
            "one was missed",
            lambda w: write(w, "REVIEW.md", "\n".join(REVIEW.splitlines()[:2]) + "\n"),
            "The failure that becomes a score",
        ),
        (
            "a false alarm",
            lambda w: write(w, "REVIEW.md", REVIEW + "areal/utils/spans.py:8 LOW: rename it.\n"),
            "Code that is right is not accused",
        ),
        ("it was mended", lambda w: edit(w, "areal/reward/close.py", "0.0", "-1.0"), "Nothing but the review"),
    ],
    "translate-doc-zh/1": [
        ("nothing", nothing, "The translation is in step"),
        ("copied", copy_the_english, "The new section is in Chinese"),
        (
            "the English page was put back",
            lambda w: edit(w, "docs/concepts.md", "at most 45 seconds", "at most a while"),
            "Only the translation was changed",
        ),
        (
            "another term",
            lambda w: edit(w, "docs/zh/concepts.md", "等待掉队者", "等待落后者"),
            "The translation is in step",
        ),
    ],
    "upgrade-deps/1": [
        ("nothing", nothing, "The checklist names the new use"),
        (
            "the code was changed",
            lambda w: edit(w, "areal/utils/rows.py", "split=", "name="),
            "Only the checklist was changed",
        ),
    ],
}
