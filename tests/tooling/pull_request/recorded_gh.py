"""`gh pr` as far as this project uses it: a program on PATH with the options of the real one (checked against its help
where it is installed), that keeps pull requests in a file and records every call.

    GH_STATE=state.json python recorded_gh.py pr list --head=topic --json=number
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

FIELDS = {
    "baseRefName",
    "body",
    "headRefName",
    "headRepositoryOwner",
    "isCrossRepository",
    "isDraft",
    "number",
    "title",
    "url",
}


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="gh", allow_abbrev=False)
    requests = whole.add_subparsers(dest="noun", required=True).add_parser("pr", allow_abbrev=False)
    verbs = requests.add_subparsers(dest="verb", required=True)
    listing, create, edit = (verbs.add_parser(name, allow_abbrev=False) for name in ("list", "create", "edit"))
    for each in (listing, create, edit):
        each.add_argument("--repo", "-R")
    listing.add_argument("--head", "-H")
    listing.add_argument("--state", "-s", default="open", choices=["open", "closed", "merged", "all"])
    listing.add_argument("--limit", "-L", type=int, default=30)
    listing.add_argument("--json")
    create.add_argument("--base", "-B")
    create.add_argument("--head", "-H")
    create.add_argument("--title", "-t", required=True)
    create.add_argument("--body-file", "-F", required=True)
    create.add_argument("--draft", "-d", action="store_true")
    edit.add_argument("number", type=int)
    edit.add_argument("--base", "-B")
    edit.add_argument("--title", "-t")
    edit.add_argument("--body-file", "-F")
    return whole


def say(text: str, stream: TextIO = sys.stdout) -> None:
    stream.write(f"{text}\n")


def main() -> int:
    state_file = Path(os.environ["GH_STATE"])
    state = json.loads(state_file.read_text()) if state_file.exists() else {"requests": [], "calls": []}
    arguments = parser().parse_args()
    given = sys.stdin.read() if getattr(arguments, "body_file", None) == "-" else None
    state["calls"].append({"words": sys.argv[1:], "stdin": given})
    if state.get("refuse") == arguments.verb:
        say("GraphQL: was refused (createPullRequest)", sys.stderr)
        code = 1
    else:
        code = globals()[f"do_{arguments.verb}"](state, arguments, given)
    state_file.write_text(json.dumps(state))
    return code


def do_list(state: dict, arguments: argparse.Namespace, _: str | None) -> int:
    wanted = arguments.json.split(",")
    if set(wanted) - FIELDS:
        say(f"Unknown JSON field: {sorted(set(wanted) - FIELDS)}", sys.stderr)
        return 1
    found = [each for each in state["requests"] if each["headRefName"] == arguments.head and each["state"] == "open"]
    say(json.dumps([{name: each[name] for name in wanted} for each in found]))
    return 0


def do_create(state: dict, arguments: argparse.Namespace, body: str | None) -> int:
    owner, _, head = arguments.head.rpartition(":")
    asked = ["git", "ls-remote", "--exit-code", "origin", f"refs/heads/{head}"]
    pushed = subprocess.run(asked, capture_output=True, check=False)
    if pushed.returncode:
        say(f"pull request create failed: head {head} is not pushed", sys.stderr)
        return 1
    if any(each["headRefName"] == head and each["state"] == "open" for each in state["requests"]):
        say("a pull request for this branch already exists", sys.stderr)
        return 1
    number = len(state["requests"]) + 1
    state["requests"].append(
        {
            "number": number,
            "url": f"https://github.com/owner/name/pull/{number}",
            "title": arguments.title,
            "baseRefName": arguments.base,
            "headRefName": head,
            "headRepositoryOwner": {"login": owner or "owner"},
            "isCrossRepository": bool(owner),
            "isDraft": arguments.draft,
            "body": (body or "").replace("\n", "\r\n"),  # as the service stores it
            "state": "open",
        }
    )
    say(f"https://github.com/owner/name/pull/{number}")
    return 0


def do_edit(state: dict, arguments: argparse.Namespace, body: str | None) -> int:
    found = next((each for each in state["requests"] if each["number"] == arguments.number), None)
    if found is None:
        say("no pull requests found", sys.stderr)
        return 1
    found |= {"title": arguments.title} if arguments.title else {}
    found |= {"baseRefName": arguments.base} if arguments.base else {}
    found |= {"body": body.replace("\n", "\r\n")} if body is not None else {}
    say(found["url"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
