"""Solutions of the second task of each skill, and ways of doing it wrong."""

from __future__ import annotations

from task_steps import commit, edit, nothing, ours, remove, write

WINDOW_TEST = '''"""The newest values of a stream."""

import pytest

from areal.utils.window import Window


def test_the_oldest_value_is_pushed_out_once_there_is_no_room():
    window = Window(2)
    assert [window.add(value) for value in (1.0, 2.0, 3.0, 4.0)] == [None, None, 1.0, 2.0]


def test_the_mean_is_that_of_the_values_there_are():
    window = Window(3)
    window.add(1.0)
    window.add(2.0)
    assert window.mean() == 1.5


def test_an_empty_window_has_no_mean():
    with pytest.raises(ValueError, match="empty"):
        Window(1).mean()


def test_a_window_has_room_for_one_value_at_least():
    Window(1)
    with pytest.raises(ValueError, match="expected one or more"):
        Window(0)
'''
REVIEW = """\
areal/reward/formula.py:12 CRITICAL: eval runs what the model wrote; parse the number with float.
areal/workflow/logged.py:22 HIGH: nobody keeps the task, so it may vanish or fail unseen; await it.
"""
SENTENCE = "S = 0 是同步训练：生成和训练轮流进行。"  # noqa: RUF001 - punctuation of Chinese
CHANGED = (
    f"{SENTENCE[:-1]}，最多有 512 个样本存活\n"  # noqa: RUF001 - punctuation of Chinese
    "（按 `examples/math/arithmetic_grpo.yaml` 的设置）。"  # noqa: RUF001 - punctuation of Chinese
)
SPANS, AGREE = "areal/utils/spans.py", "areal/utils/agree.py"
BOTH = "its second number. Positions begin at 0. Spans that only touch share none."


def add_dataset(workspace):
    ours(workspace, "areal-new", "dataset", "votes", "--from", "votes.csv", "--no-test")


def add_environment(workspace):
    words = ("--style", "tools", "--max-steps", "12", "--no-test")
    ours(workspace, "areal-new", "environment", "corner-shop", *words)


def add_model(workspace):
    ours(workspace, "areal-new", "model", "mistral", "--no-test")


def add_reward(workspace):
    words = ("--style", "regex", "--pattern", r"(\d+)", "--from-examples", "judged.jsonl", "--no-test")
    ours(workspace, "areal-new", "reward", "apples", *words)


def add_unit_tests(workspace):
    write(workspace, "tests/areal/utils/test_window.py", WINDOW_TEST)


def add_workflow(workspace):
    ours(workspace, "areal-new", "workflow", "sums", "--style", "tool_use", "--max-calls", "3", "--no-test")


def commit_the_change(workspace):
    paths = ("areal/reward/math_verify.py", "tests/areal/reward/test_count_boxes.py")
    commit(workspace, "feat(reward): count the boxes of a completion", *paths)


def commit_everything(workspace):
    commit(workspace, "feat(reward): count the boxes of a completion", ".")


def commit_the_test_apart(workspace):
    commit(workspace, "feat(reward): count the boxes of a completion", "areal/reward/math_verify.py")
    commit(workspace, "test(reward): boxes are counted", "tests/areal/reward/test_count_boxes.py")


def resolve(workspace, text=BOTH):
    """Rebase, keep what `text` says, and push."""
    ours(workspace, "git", "fetch", "-q", "origin")
    workspace.run(["git", "rebase", "-q", "origin/main"])
    whole = workspace.path(SPANS).read_text(encoding="utf-8")
    start, end = whole.index("<<<<<<<"), whole.index("\n", whole.index(">>>>>>>")) + 1
    line = f'    """How many positions two spans share; a span ends before {text}"""\n'
    write(workspace, SPANS, whole[:start] + line + whole[end:])
    ours(workspace, "git", "add", SPANS)
    ours(workspace, "git", "-c", "core.editor=true", "rebase", "--continue")
    ours(workspace, "git", "commit", "-q", "--amend", "-m", "docs(utils): say what touching spans share")
    ours(workspace, "git", "push", "-q", "-f", "origin", "touching")


def lose_their_sentence(workspace):
    resolve(workspace, "its second number. Spans that only touch share none.")


def push_as_it_is(workspace):
    ours(workspace, "git", "push", "-q", "origin", "touching")


def take_part(workspace):
    edit(workspace, AGREE, '    if number is None:\n        return float("-inf")\n', "")
    edit(workspace, AGREE, "torch.tensor(number,", 'torch.tensor(float("-inf") if number is None else number,')


def agree_on_nothing(workspace):
    edit(workspace, AGREE, "    dist.all_reduce(value, op=dist.ReduceOp.MAX)\n", "")


def agree_on_another(workspace):
    take_part(workspace)
    edit(workspace, AGREE, "ReduceOp.MAX", "ReduceOp.SUM")


def review(workspace):
    write(workspace, "REVIEW.md", REVIEW)


def translate(workspace):
    edit(workspace, "docs/zh/concepts.md", SENTENCE, CHANGED)
    ours(workspace, "areal-docs", "zh-mark", "docs/zh/concepts.md")


def only_mark(workspace):
    edit(workspace, "docs/zh/concepts.md", CHANGED, SENTENCE)
    workspace.run(["areal-docs", "zh-mark", "docs/zh/concepts.md"])


def audit(workspace):
    ours(workspace, "areal-audit", "datasets", "--write")


def write_anew(workspace):
    remove(workspace, "skills/upgrade-deps/checklists/datasets.md")
    ours(workspace, "areal-audit", "datasets", "--write")


GOOD = {
    "add-dataset/2": add_dataset,
    "add-environment/2": add_environment,
    "add-reward/2": add_reward,
    "add-unit-tests/2": add_unit_tests,
    "add-workflow/2": add_workflow,
    "commit-conventions/2": commit_the_change,
    "create-pr/2": resolve,
    "debug-distributed/2": take_part,
    "review-pr/2": review,
    "translate-doc-zh/2": translate,
}
SLOW_GOOD = {"add-model/2": add_model, "upgrade-deps/2": audit}
BROKEN = {
    "add-dataset/2": [
        ("nothing", nothing, "DATASETS has the entry votes_preference"),
        (
            "the other way round",
            lambda w: write(
                w, "areal/dataset/fixtures/votes/train.jsonl", '{"prompt": "?", "chosen": "6", "rejected": "5"}\n'
            ),
            "Packaged rows are rows of the votes",
        ),
        ("a script as well", lambda w: write(w, "convert.py", ""), "Nothing else was changed"),
    ],
    "add-model/2": [
        ("nothing", nothing, "MODELS has the entry mistral"),
        (
            "the family of another type",
            lambda w: edit(
                w, "areal/models/registry.py", '    "qwen2":', '    "mistral": "areal.models.qwen2:SPEC",\n    "qwen2":'
            ),
            "MODELS has the entry mistral",
        ),
        (
            "a window that is ignored",
            lambda w: write(w, "areal/models/mistral/args.py", "IGNORED = {'sliding_window'}\n"),
            "The field of the window is used",
        ),
    ],
    "add-reward/2": [
        ("nothing", nothing, "REWARDS has the entry apples"),
        (
            "the first number counts",
            lambda w: edit(w, "areal/reward/apples.py", "found = match[1]", "return match[1]"),
            "The last number of a completion is compared",
        ),
        (
            "examples of its own",
            lambda w: write(w, "tests/areal/reward/test_apples.py", "def test_it():\n    assert 1 + 1 == 2\n"),
            "The judged completions are in the test",
        ),
    ],
    "add-environment/2": [
        ("nothing", nothing, "ENVIRONMENTS has the entry corner_shop"),
        (
            "any sum is paid",
            lambda w: edit(w, "areal/environment/corner_shop.py", "reward=float(right)", "reward=1.0"),
            "Twelve turns are allowed",
        ),
    ],
    "add-unit-tests/2": [
        ("nothing", nothing, "The tests are where the package is mirrored"),
        (
            "no promise about room",
            lambda w: edit(
                w, "tests/areal/utils/test_window.py", "[None, None, 1.0, 2.0]", "[None, None, *window._values][:4]"
            ),
            "The tests are where the package is mirrored",
        ),
        (
            "the mean of a full window alone",
            lambda w: edit(w, "tests/areal/utils/test_window.py", "window = Window(3)", "window = Window(2)"),
            "They fail when a promise",
        ),
    ],
    "add-workflow/2": [
        ("nothing", nothing, "WORKFLOWS has the entry sums"),
        (
            "another number of calls",
            lambda w: edit(w, "areal/workflow/sums.py", "max_calls: int = 3", "max_calls: int = 4"),
            "Three calls are allowed",
        ),
        (
            "what tools say is trained on",
            lambda w: edit(w, "areal/workflow/sums.py", "add_observation", "add_response"),
            "Three calls are allowed",
        ),
    ],
    "commit-conventions/2": [
        ("nothing", nothing, "There is one commit"),
        ("the test apart", commit_the_test_apart, "There is one commit"),
        ("the notes too", commit_everything, "There is one commit"),
    ],
    "create-pr/2": [
        ("nothing", nothing, "The branch is on the remote"),
        ("as it is", push_as_it_is, "The branch is on the remote"),
        ("their sentence is lost", lose_their_sentence, "Both sentences are there"),
    ],
    "debug-distributed/2": [
        ("nothing", nothing, "No rank leaves before the collective"),
        ("no collective", agree_on_nothing, "No rank leaves before the collective"),
        ("another file", lambda w: write(w, "areal/utils/agreed.py", ""), "The rest of the code was left alone"),
    ],
    "review-pr/2": [
        ("nothing", nothing, "The answer of a model that is run as code"),
        (
            "one was missed",
            lambda w: write(w, "REVIEW.md", REVIEW.splitlines()[0] + "\n"),
            "The task that nobody keeps",
        ),
        (
            "the worst last",
            lambda w: write(w, "REVIEW.md", "\n".join(reversed(REVIEW.splitlines())) + "\n"),
            "What a stranger can run comes first",
        ),
        ("it was mended", lambda w: edit(w, "areal/reward/formula.py", "eval(", "float("), "Nothing but the review"),
    ],
    "translate-doc-zh/2": [
        ("nothing", nothing, "The translation is in step"),
        ("marked as it was", only_mark, "The sentence is translated where it stands"),
    ],
    "upgrade-deps/2": [
        ("nothing", nothing, "The checklist does not name the file that is gone"),
        ("written anew", write_anew, "The note of a colleague"),
    ],
}
