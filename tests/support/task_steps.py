"""What solutions of tasks do in a workspace: run a command as an agent does, write, edit, remove and commit."""

from __future__ import annotations


def ours(workspace, *words):
    done = workspace.run(words)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"


def write(workspace, path, text):
    target = workspace.path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def edit(workspace, path, before, after):
    text = workspace.path(path).read_text(encoding="utf-8")
    assert before in text, path
    write(workspace, path, text.replace(before, after))


def remove(workspace, path):
    workspace.path(path).unlink()


def commit(workspace, message, *paths):
    ours(workspace, "git", "add", "--", *paths)
    ours(workspace, "git", "commit", "-q", "-m", message)


def nothing(workspace):
    del workspace
