"""Computes the commit that is proposed, with its message, from objects alone.

Nothing here knows branches, an index or a work tree. Commits are written again with their author and their words: type
and scope are those that `areal-commit suggest` finds in the diff, the subject is that of the commit that fits best, and
the body is what every commit said. Nothing is made up, and no placeholder reaches a remote.
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import MergeConflictError, UsageError
from tooling.commit.changes import Sides, read_staged
from tooling.commit.history import read_history
from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import read_commit_settings
from tooling.commit.suggestion import guess_scope, guess_type, skeleton
from tooling.pull_request.git import TitleError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.commit.message import Message
    from tooling.commit.rules import MessageProblem
    from tooling.commit.settings import CommitSettings
    from tooling.pull_request.branch import ProposalOptions, Target
    from tooling.pull_request.git import WorkTree


_FIELDS: Final = "%H%x00%P%x00%T%x00%an%x00%ae%x00%ad%x00%aN%x00%aE%x00%B%x00"
_COUNT: Final = 9
_EMPTY_IDENTITY: Final = re.compile(r"[<>\n\x00]")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchCommit:
    """One commit. Name and address are as written; `person` is what .mailmap makes of them."""

    hash: str
    parents: tuple[str, ...]
    tree: str
    name: str
    email: str
    date: str
    """Seconds and time zone: "1700000000 +0100"."""
    person: tuple[str, str]
    message: str

    @property
    def subject(self) -> str:
        """The first line."""
        return self.message.strip().split("\n", 1)[0].strip()


def commits_since(git: WorkTree, base: str, tip: str) -> tuple[BranchCommit, ...]:
    """Return the commits that `tip` has and `base` has not, oldest first."""
    return _read(git, "--reverse", "--topo-order", "--end-of-options", f"{base}..{tip}", "--")


def _read(git: WorkTree, *asked: str) -> tuple[BranchCommit, ...]:
    """Read what `git log` lists; text in another encoding is converted."""
    settings = ("--no-show-signature", "--date=raw", "--encoding=UTF-8", "--no-patch", "--no-color")
    fields = git.run("log", *settings, f"--format={_FIELDS}", *asked).decode(errors="replace").split("\0")
    found = []
    for start in range(0, len(fields) - _COUNT + 1, _COUNT):
        hash_, parents, tree, author, email, date, person, address, message = fields[start : start + _COUNT]
        found.append(
            BranchCommit(
                hash=hash_.strip("\n"),
                parents=tuple(parents.split()),
                tree=tree,
                name=author,
                email=email,
                date=date,
                person=(person, address),
                message=message.removesuffix("\n"),
            )
        )
    return tuple(found)


def write_commit(
    git: WorkTree, *, tree: str, parent: str, message: str, author: BranchCommit, signed: bool = True
) -> str:
    """Make a commit object by the author of another one; its committer is who runs this. Raises UsageError with git's
    words where nobody is known, or the commit cannot be signed as the settings ask."""
    sign = (
        ("-S",)
        if signed and git.text("config", "--type=bool", "--get", "commit.gpgSign", allowed=(0, 1)) == "true"
        else ()
    )
    who = {
        "GIT_AUTHOR_NAME": _EMPTY_IDENTITY.sub("", author.name) or "unknown",
        "GIT_AUTHOR_EMAIL": _EMPTY_IDENTITY.sub("", author.email),
        "GIT_AUTHOR_DATE": author.date,
    }
    text = message.rstrip("\n").encode("utf-8", errors="replace") + b"\n"
    arguments = ("-c", "i18n.commitEncoding=UTF-8", "commit-tree", *sign, "-p", parent, "-F", "-", tree)
    made = git.attempt(*arguments, given=text, environment=who)
    if made.status != 0:
        fix = "`git config user.name NAME` and `git config user.email ADDRESS`; or mend what signs your commits"
        raise UsageError(f"no commit can be made: {made.complaint}", where=os.fspath(git.root), fix=fix)
    return made.output.decode().strip()


class RebaseConflictError(MergeConflictError):
    """Both sides changed the same lines; `files` names where. Nothing was changed."""

    def __init__(self, message: str, files: Sequence[str], *, where: str, fix: str) -> None:
        """files: paths with conflicts."""
        super().__init__(message, where=where, fix=fix)
        self.files = tuple(files)
        self.details = {"files": list(files)}


def merged_tree(git: WorkTree, onto: str, tip: str, *, base_name: str, what: str = "") -> str:
    """Merge two commits into a tree. what: which commit is brought over, for the message. Raises RebaseConflictError
    that names the files of a conflict."""
    done = git.attempt("merge-tree", "--write-tree", "-z", "--name-only", onto, tip)
    if done.status not in {0, 1}:
        if "usage: git merge-tree" in done.complaint:
            fix = "upgrade git to 2.38 or newer, or use --no-rebase"
            raise UsageError("this git cannot merge without a work tree", where="git --version", fix=fix)
        fix = "put right what git says, and run it again; nothing was changed"
        raise UsageError(f"the merge failed: {done.complaint}", where=os.fspath(git.root), fix=fix)
    tree, _, rest = done.output.partition(b"\0")
    if done.status == 1:
        named = rest.split(b"\0\0", 1)[0].split(b"\0")
        files = [os.fsdecode(path) for path in dict.fromkeys(named) if path]
        shown = ", ".join(repr(path) if not path.isprintable() else path for path in files)
        raise RebaseConflictError(
            f"{what or 'the branch'} and {base_name} changed the same lines of: {shown}",
            files,
            where=base_name,
            fix=f"nothing was changed; `git rebase {base_name}`, put the files right, and run it again",
        )
    return tree.decode()


def replay(git: WorkTree, commits: Sequence[BranchCommit], onto: str, *, base_name: str) -> str:
    """Write the commits one after the other on top of another one; return the last. What `onto` has already is left
    out, as `git rebase` does. Raises RebaseConflictError, and UsageError for merges, whose resolutions would be
    lost."""
    merge = next((each for each in commits if len(each.parents) != 1), None)
    if merge is not None:
        raise UsageError(
            f"the branch holds a merge ({merge.hash[:12]} {merge.subject}), which cannot be replayed",
            where="--no-squash",
            fix="leave out --no-squash, or add --no-rebase",
        )
    new = onto
    for each in commits:
        before = git.tree(each.parents[0])
        if git.tree(new) == before:
            tree = each.tree
        else:
            # Beside its parent, with the new tree: so the parent is where the two sides parted.
            beside = write_commit(
                git, tree=git.tree(new), parent=each.parents[0], message="beside", author=each, signed=False
            )
            what = f"{each.hash[:12]} ({each.subject})"
            tree = merged_tree(git, beside, each.hash, base_name=base_name, what=what)
        if tree == git.tree(new) and each.tree != before:
            continue  # it is there already
        new = write_commit(git, tree=tree, parent=new, message=each.message, author=each)
    return new


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What the branch is to become. Objects only: nothing leads to them yet."""

    before: str
    """Tip of the branch now."""
    after: str
    """Tip of the branch afterwards; the same where nothing has to be rewritten."""
    before_tree: str
    after_tree: str
    parted: str
    """Where branch and base parted: with `before`, the change as it was written."""
    onto: str
    """Parent of the first commit of the proposal."""
    commits: tuple[BranchCommit, ...]
    """Of the branch as it is."""
    title: str
    message: str
    """Of the newest commit of the proposal."""
    joined: bool
    """Whether the proposal is one commit."""

    @property
    def rewritten(self) -> bool:
        """Whether the branch moves."""
        return self.before != self.after


def propose(git: WorkTree, tip: str, target: Target, options: ProposalOptions) -> Proposal:
    """Compute the proposal. Raises RebaseConflictError, TitleError, and UsageError where nothing is to be proposed."""
    base_name = f"{target.base_remote}/{target.base}"
    shared = git.run("merge-base", "--all", target.base_tip, tip, allowed=(0, 1)).decode().split()
    if not shared:
        shallow = git.repository.is_shallow()
        fix = "`git fetch --unshallow`" if shallow else "name another base"
        why = "; this clone has only the newest commits" if shallow else ""
        raise UsageError(f"this branch and {base_name} share no history{why}", where="--base", fix=fix)
    if len(shared) > 1 and not options.rebase:
        fix = "leave out --no-rebase"
        raise UsageError(f"this branch and {base_name} parted in {len(shared)} places", where="--no-rebase", fix=fix)
    parted = shared[0]
    commits = commits_since(git, target.base_tip, tip)
    if not commits:
        fix = "commit something first, or name another base"
        raise UsageError(f"the branch has no commit that {base_name} lacks", where="HEAD", fix=fix)
    title = checked_title(options.title, git.root) if options.title else ""
    onto = target.base_tip if options.rebase else parted
    if options.squash:
        after = _squashed(git, commits, parted, onto, title, base_name)
    else:
        after = tip if onto == parted else replay(git, commits, onto, base_name=base_name)
    made, ground = _read(git, "--no-walk=unsorted", "--end-of-options", after, onto, "--")
    if made.tree == ground.tree:
        fix = f"it may be merged already; `git switch {target.base}`"
        raise UsageError(f"{base_name} has everything that this branch changes", where="HEAD", fix=fix)
    if options.squash or len(commits) == 1:
        header = title or made.message.strip().split("\n", 1)[0]
    else:
        written = tuple(each for each in commits if len(each.parents) < 2) or commits
        header = title or joined_message(git.root, written, parted, tip, "").split("\n", 1)[0]
    return Proposal(
        before=tip,
        after=after,
        before_tree=commits[-1].tree,
        after_tree=made.tree,
        parted=parted,
        onto=onto,
        commits=commits,
        title=header,
        message=made.message,
        joined=options.squash or len(commits) == 1,
    )


def _squashed(
    git: WorkTree, commits: tuple[BranchCommit, ...], parted: str, onto: str, title: str, base_name: str
) -> str:
    """Write one commit. The only commit of a branch keeps its words when they conform."""
    tip = commits[-1].hash
    alone = commits[0] if len(commits) == 1 and len(commits[0].parents) == 1 else None
    written = tuple(each for each in commits if len(each.parents) < 2) or commits
    if alone is not None and conforms(alone.subject, git.root):
        keeps = not title or title == alone.subject
        if keeps:
            return tip if alone.parents[0] == onto else replay(git, commits, onto, base_name=base_name)
        message = f"{title}\n{alone.message.strip().partition(chr(10))[2]}"
    else:
        message = joined_message(git.root, written, parted, tip, title)
    tree = commits[-1].tree if onto == parted else merged_tree(git, onto, tip, base_name=base_name)
    return write_commit(git, tree=tree, parent=onto, message=message, author=author_of(written))


_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_RANK: Final = ("feat", "fix", "perf", "refactor", "revert", "docs", "build", "ci", "test", "style", "gov", "chore")
_NOISE: Final = re.compile(r"(?:fixup|squash|amend)! +")
_LISTED: Final = 30
"""Commits that a message lists."""
_COAUTHOR: Final = "Co-authored-by"


def conforms(header: str, root: Path) -> bool:
    """Whether a header may stay as it is, and the words below it with it."""
    return not _errors(header, read_commit_settings(root))


def _errors(header: str, settings: CommitSettings) -> list[MessageProblem]:
    found = problems(parse(header), settings, final=True)
    return [each for each in found if each.severity == "error"]


def checked_title(title: str, root: Path) -> str:
    """Return a given title in one line. Raises TitleError that says what is wrong with it."""
    header = " ".join(_CONTROL.sub(" ", title).split())
    wrong = _errors(header, read_commit_settings(root))
    if wrong:
        said = "; ".join(each.message for each in wrong)
        raise TitleError(f"the title does not conform: {said}", where=f"--title {header!r}", fix=wrong[0].fix)
    return header


def joined_message(root: Path, commits: Sequence[BranchCommit], before: str, after: str, title: str) -> str:
    """Write one message for all commits. before, after: the sides of the change; title: the header, if one was
    given."""
    settings = read_commit_settings(root)
    parsed = [parse(_CONTROL.sub(" ", each.message.replace("\r\n", "\n"))) for each in commits]
    header = title or _joined_header(root, settings, parsed, before, after)
    if any(each.breaking for each in parsed) and not parse(header).breaking and len(header) < settings.header_length:
        header = re.sub(r"^([^:]*): ", r"\1!: ", header, count=1)
    # Every footer once; the breaking ones first, as the specification shows them
    footers = []
    for footer in sorted((each for one in parsed for each in one.footers), key=lambda each: not each.breaking):
        value = "\n  ".join(line.strip() for line in footer.value.split("\n") if line.strip())
        footers.append(f"{footer.token}: {value}")
    footers = list(dict.fromkeys([*footers, *coauthors(commits)]))
    parts = [header, _body(parsed, header, settings), "\n".join(footers)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _body(parsed: Sequence[Message], header: str, settings: CommitSettings) -> str:
    """Collect what the commits say: first the one that gave the header, then the others as a list."""
    subject = parse(header).subject
    first = next((each for each in parsed if each.subject == subject), None)
    text = _text(first) if first is not None else ""
    if len(parsed) == 1 and first is None:
        return "\n\n".join(part for part in (parsed[0].header.strip(), _text(parsed[0])) if part)
    others = [each for each in parsed if each is not first and not _NOISE.match(each.header)]
    items = [_item(each, settings.body_width) for each in others[:_LISTED]]
    items += [f"- and {len(others) - _LISTED} more commits"] if len(others) > _LISTED else []
    listed = "\n".join(dict.fromkeys(items))
    # A list that an earlier run began goes on.
    gap = "\n" if text.rpartition("\n")[2].startswith(("- ", "  ")) else "\n\n"
    return gap.join(part for part in (text, listed) if part)


def coauthors(commits: Sequence[BranchCommit]) -> list[str]:
    """Return a line for everybody but the author of the joined commit, in the order of their first commits."""
    first = author_of(commits).person
    people = {each.person[1].casefold(): each.person for each in commits}
    people.pop(first[1].casefold(), None)
    return [f"{_COAUTHOR}: {_CONTROL.sub('', name)} <{address}>" for name, address in people.values()]


def author_of(commits: Sequence[BranchCommit]) -> BranchCommit:
    """Find who wrote most of the commits (the first of them, where that is open); return their latest commit."""
    count: dict[str, list[BranchCommit]] = {}
    for each in commits:
        count.setdefault(each.person[1].casefold(), []).append(each)
    return max(count.values(), key=len)[-1]


def _joined_header(root: Path, settings: CommitSettings, parsed: Sequence[Message], before: str, after: str) -> str:
    staged = read_staged(root, Sides(before, after))
    history = read_history(root, before)
    kind = guess_type(staged.files, settings.types, history.types).value
    scope = guess_scope(staged.files, staged.symbols, settings, history.scopes).value
    # Speaks for all: the first of the suggested type if there is one, else of the weightiest type
    right = [each for each in parsed if each.kind == "conventional" and not _errors(each.header, settings)]
    rank = {name: number for number, name in enumerate((kind, *_RANK))}
    best = min(right, key=lambda each: rank.get(each.type.lower(), len(rank)), default=None)
    if best is not None:
        kind = best.type.lower()
        scope = best.scope or scope
        subject = best.subject
    else:
        made = skeleton(kind, scope, staged, settings).split("\n", 1)[0]
        subject = parse(made).subject or made
    head = f"{kind}({scope})" if scope else kind
    marked = "!" if any(each.breaking for each in parsed) else ""
    room = settings.header_length - len(head) - len(marked) - 2
    header = f"{head}{marked}: {textwrap.shorten(subject, max(room, 12), placeholder=' ...')}"
    plain = "chore" if "chore" in settings.types else settings.types[0]
    return header if not _errors(header, settings) else f"{plain}: update {len(staged.files)} files"


def _item(message: Message, width: int) -> str:
    """Format one commit of a list: its subject, and what it says indented below."""
    lines = textwrap.wrap(
        message.header.strip() or "(no message)",
        width,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    text = _text(message)
    lines += [f"  {line}".rstrip() for line in text.split("\n")] if text else []
    return "\n".join(lines)


def _text(message: Message) -> str:
    """Return what a message says between header and footers."""
    return "\n".join(line for _, line in message.body).strip("\n")
