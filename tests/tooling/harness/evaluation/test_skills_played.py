"""Each skill is done by a scripted agent that knows its text and nothing else, from a clone in which nothing is active.

All platforms hand out the same bytes, so that it is enough to play the form of one; a sample is played by default.
"""

from __future__ import annotations

import dataclasses
import sys
import time

import pytest
from skill_player import SkillPlayer, SkillTask, StuckError, Writing, explained_codes, filled, steps_of
from skill_plays import NEEDED, PLAYS

from tooling.harness.compile import compiled, read_stamp
from tooling.harness.evaluation.checks import judge
from tooling.harness.evaluation.workspace import TaskWorkspace, prepare, run
from tooling.harness.platforms import PLATFORMS

SAMPLE = "translate-doc-zh"
HALF_AN_HOUR = 1800


def forms_of(context):
    """Return what clients read: platform -> skill -> page, from the files that `sync` writes."""
    files = compiled(context.root, context.sources, list(PLATFORMS.values()))
    return {
        platform.name: {
            skill.name: files[f"{platform.skills}/{skill.name}/SKILL.md"].content.decode()
            for skill in context.sources.skills
        }
        for platform in PLATFORMS.values()
        if platform.skills
    }


@pytest.fixture(scope="module")
def forms(context):
    return forms_of(context)


@pytest.fixture
def clone(base, context, evaluations, tmp_path):
    """Make the workspace of a task."""

    def made(task):
        evaluation = evaluations[task.evaluation]
        evaluation = dataclasses.replace(evaluation, steps=(*task.settings, *evaluation.steps))
        return evaluation, prepare(base, evaluation, context.root, tmp_path / "clone")

    return made


def play(clone, text, task):
    """Do what the text says; return the player and what the verdict has against the result."""
    evaluation, workspace = clone(task)
    player = SkillPlayer(workspace, text, task)
    player.play()
    return player, {one.check.says: one.problem for one in judge(evaluation, workspace) if one.problem}


def without(text, words):
    """Return the text without the line that holds the words."""
    [line] = [line for line in text.splitlines(keepends=True) if words in line]
    return text.replace(line, "")


# ------------------------------------------------------------------------------------------------ the same for all


def test_every_platform_hands_out_the_same_page_of_every_skill(context, forms):
    assert {"agents", "claude"} <= forms.keys()
    readers = {one.name for one in PLATFORMS.values() if one.client}
    assert readers == {"claude", "codex", "opencode"}  # the last two read the folder of the standard
    for skill in context.sources.skills:
        pages = {name: form[skill.name] for name, form in forms.items()}
        assert len(set(pages.values())) == 1, skill.name
        stamp = read_stamp(next(iter(pages.values())).encode())
        assert stamp is not None
        assert set(stamp.carried) == set(skill.resources)


def test_every_skill_is_played_and_says_what_to_activate_and_how_to_verify(context, forms):
    assert {skill.name for skill in context.sources.skills} == PLAYS.keys() == NEEDED.keys()
    for name, text in forms["agents"].items():
        steps = list(steps_of(text))
        assert steps[0].command.startswith("make setup && . .venv/bin/activate"), name
        assert any(step.section == "Verify" for step in steps), name
        assert PLAYS[name].meets <= explained_codes(text), name
        for word in (*PLAYS[name].values, NEEDED[name]):
            assert word in text, f"{name}: the text does not hold {word!r} any more"


# --------------------------------------------------------------------------------------------------- the agent itself

PAGE = """\
# Greet

```bash
export GREETING=hello
echo "$GREETING" > NAME    # the file
```

Then write down who it is for.

```text
rm -rf everything
```

```bash
mkdir -p deep && cd deep
ls .. | grep -x NAME
cat who.txt
false                         # fails: there is nobody
```

| 3 | nobody is there |

## Verify

```bash
grep hello NAME
exit 3
```
"""
GREET = SkillTask(
    "", {"NAME": "ann.txt", "who.txt": "../who.txt"}, (Writing("write down who", "who.txt", "Ann\n"),), frozenset({3})
)


@pytest.fixture
def empty(tmp_path):
    root = tmp_path / "empty"
    root.mkdir()
    run(["git", "init", "-q"], root)
    return TaskWorkspace(root, "HEAD")


def test_it_runs_the_lines_in_order_in_one_shell_and_writes_where_the_text_asks(empty):
    played = SkillPlayer(empty, PAGE, GREET).play()
    assert [one.code for one in played] == [0, 0, 0, 0, 0, 1, 0, 3]
    assert (empty.root / "ann.txt").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("NAME", "ANOTHER", "nobody says what ANOTHER is"),
        ("write down who", "remember who", "does not say 'write down who'"),
        ("# fails: there", "# there", "`false .* ends with 1"),
        ("false", "true", "ends with 0"),
        ("| 3 | nobody", "| 4 | nobody", "`exit 3` ends with 3"),
        ("## Verify", "## More", "nobody can say whether it is done"),
        ('echo "$GREETING" > NAME    # the file\n', "", r"`ls .. \| grep -x ann.txt` ends with 1"),
    ],
)
def test_it_is_stuck_where_the_text_does_not_lead_on(empty, before, after, said):
    with pytest.raises(StuckError, match=said):
        SkillPlayer(empty, PAGE.replace(before, after), GREET).play()


def test_code_that_was_broken_on_purpose_has_to_fail_and_is_put_back(empty):
    (empty.root / "code.py").write_text("ANSWER = 42\n")
    page = "# T\n\nBreak it.\n\n## Verify\n\n```bash\ngrep 42 code.py    # in place of pytest\n```\n"
    broken = Writing("Break it", "code.py", before="42", after="41", undone=True)
    SkillPlayer(empty, page, SkillTask("", writings=(broken,))).play()
    assert (empty.root / "code.py").read_text() == "ANSWER = 42\n"
    harmless = dataclasses.replace(broken, before="ANSWER", after="ANSWERS")
    with pytest.raises(StuckError, match="passes although"):
        SkillPlayer(empty, page, SkillTask("", writings=(harmless,))).play()


def test_only_whole_words_are_values_of_a_task():
    values = {"letters": "digits", "rows.jsonl": "quiz.csv", "sums": None}
    assert filled("new letters --letters A-E --from rows.jsonl reward=letters", values) == (
        "new digits --letters A-E --from quiz.csv reward=digits"
    )
    assert filled("new dataset sums --kind rl", values) is None
    assert filled("ls rows.jsonl.gz my-letters", values) == "ls rows.jsonl.gz my-letters"


# --------------------------------------------------------------------------------------------------- the skills, played


def skills(*, sample):
    return [pytest.param(name, marks=() if name == sample else pytest.mark.exhaustive) for name in sorted(PLAYS)]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(HALF_AN_HOUR)
@pytest.mark.parametrize("name", skills(sample=SAMPLE))
def test_a_skill_is_done_by_an_agent_that_knows_only_its_text(name, forms, clone, record_property, capsys):
    started = time.monotonic()
    player, problems = play(clone, forms["agents"][name], PLAYS[name])
    assert problems == {}
    gates = player.gates()
    assert gates
    said = f"{len(player.played)} steps, {len(player.left_out)} left out, {len(gates)} gates"
    said += f" ({', '.join(str(one.code) for one in gates)}), {time.monotonic() - started:.0f} s"
    record_property("played", said)
    with capsys.disabled():
        sys.stderr.write(f"\n{name}: {said}\n")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(HALF_AN_HOUR)
@pytest.mark.parametrize("name", sorted(PLAYS))
def test_a_text_without_a_needed_line_leads_nowhere(name, forms, clone):
    text = without(forms["agents"][name], NEEDED[name])
    try:
        _, problems = play(clone, text, PLAYS[name])
    except StuckError:
        return
    assert problems != {}
