"""A table of scopes out of history."""

import tomllib

from tooling.commit.settings import read_commit_settings


def history(repo):
    """Two scopes by folder, one of them in two spellings, documents without any."""
    for number in range(4):
        repo.write("src/api/a.py", f"x = {number}\n")
        repo.commit(f"fix(api): keep {number}", "src/api/a.py")
        repo.write("src/trees/b.py", f"x = {number}\n")
        repo.commit(f"fix({'tree_attn' if number == 1 else 'tree-attn'}): keep {number}", "src/trees/b.py")
        repo.write("docs/a.md", f"{number}\n")
        repo.commit(f"docs: say {number}", "docs/a.md")


def test_each_folder_goes_to_the_scope_that_its_commits_had(repo):
    history(repo)
    report = repo.json("learn")
    assert report["scopes"] == {"api": ["src/api/**"], "tree-attn": ["src/trees/**"]}
    assert report["aliases"] == {"tree-attn": ["tree_attn"]}
    assert (report["commits"], report["scoped"]) == (12, 8)


def test_the_table_is_toml_that_the_settings_understand(repo, tmp_path):
    history(repo)
    assert repo.run("learn", "--write").code == 0
    settings = read_commit_settings(repo.root)
    assert settings.scopes["api"].paths == ("src/api/**",)
    assert settings.canonical("tree_attn") == "tree-attn"


def test_what_pyproject_says_already_is_kept(repo):
    repo.write("pyproject.toml", '[project]\nname = "x"\n\n[tool.areal.commit]\nbody_width = 80')
    history(repo)
    repo.run("learn", "--write")
    text = (repo.root / "pyproject.toml").read_text()
    assert text.startswith('[project]\nname = "x"\n\n[tool.areal.commit]\nbody_width = 80\n')
    assert tomllib.loads(text)["tool"]["areal"]["commit"]["scopes"].keys() == {"api", "tree-attn"}


def test_a_table_of_somebody_s_is_not_replaced(repo):
    history(repo)
    repo.run("learn", "--write")
    before = (repo.root / "pyproject.toml").read_text()
    assert repo.run("learn", "--write").code == 3
    assert (repo.root / "pyproject.toml").read_text() == before
    assert repo.run("learn").code == 0


def test_a_dry_run_shows_the_table_and_writes_nothing(repo):
    history(repo)
    done = repo.run("learn", "--write", "--dry-run", "--diff")
    assert '+api = { paths = ["src/api/**"] }' in done.stdout
    assert not (repo.root / "pyproject.toml").exists()


def test_rare_scopes_are_left_out(repo):
    history(repo)
    assert repo.run("learn", "--min-commits", "5").code == 2


def test_without_history_there_is_nothing_to_learn(repo):
    done = repo.run("learn")
    assert done.code == 2
    assert "no history" in done.stderr


def test_folders_with_odd_names_stay_toml(repo):
    for number in range(3):
        repo.write('src/quo"te\\x/a.py', f"x = {number}\n")
        repo.commit(f"fix(odd/scope): keep {number}", 'src/quo"te\\x/a.py')
    table = tomllib.loads(repo.json("learn")["table"])
    assert table["tool"]["areal"]["commit"]["scopes"]["odd/scope"]["paths"] == ["src/**"]
