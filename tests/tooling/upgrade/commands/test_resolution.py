"""Conflicts, own pins in the way, variants, overrides, and requests that contradict each other."""

import pytest


def pinned(world, line):
    """The project asks for a version of tensor itself."""
    world.write("pyproject.toml", world.read("pyproject.toml").replace('"tensor",', f'"{line}",'))
    world.commit("pin")


def changed(world):
    return [line[3:] for line in world.git("status", "--porcelain", "-uall").splitlines()]


def everything(world):
    """Every file and folder of the work tree, git's own included but for what reading refreshes."""
    return {path for path in world.root.rglob("*") if path.name != "index"}


def test_a_conflict_ends_with_9_and_reports_the_audit_and_leaves_nothing_behind(world):
    pinned(world, "tensor==1.0")
    start = everything(world)
    done = world.json("engine==2.0", "tensor==1.0", expect=9)
    assert done["code"] == "resolution"
    (resolution,) = done["resolution"]
    assert "engine==2.0 requires tensor>=2,<3" in resolution["conflict"]["words"]
    assert "tensor" in resolution["conflict"]["raw"]
    assert {each["kind"] for each in done["findings"]} >= {"moved", "removed", "param-renamed"}
    assert changed(world) == []
    assert everything(world) == start
    world.run("engine==2.0", "tensor==1.0", "--summary", "report.md", expect=9)
    assert everything(world) == start


@pytest.mark.exhaustive
def test_an_own_pin_that_is_the_only_obstacle_is_named_with_the_way_out(world):
    world.write("shop/numbers.py", "import tensor\n\n\ndef table():\n    return tensor.zeros(3)\n")
    pinned(world, "tensor<2")
    done = world.json("engine==2.0", expect=9)
    assert done["where"] == "pyproject.toml:7"
    assert "--fix writes tensor" in done["fix"]
    proposal = done["resolution"][0]["proposal"]
    assert (proposal["path"], proposal["line"], proposal["before"]) == ("pyproject.toml", 7, "<2")
    assert (proposal["applied"], proposal["breaking"]) == (False, 0)
    assert changed(world) == []


def test_an_own_pin_that_is_the_only_obstacle_is_relaxed_with_fix(world):
    world.write("shop/numbers.py", "import tensor\n\n\ndef table():\n    return tensor.zeros(3)\n")
    pinned(world, "tensor<2")
    done = world.json("engine==2.0", "--fix", expect=10)
    proposal = done["resolution"][0]["proposal"]
    assert proposal["applied"] is True
    assert f'"tensor{proposal["after"]}",' in world.read("pyproject.toml")
    assert 'name = "tensor"\nversion = "2.0"' in world.read("uv.lock")
    assert [each["distribution"] for each in done["audits"]] == ["engine", "tensor"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [[], ["--fix"]])
def test_a_requirement_is_not_relaxed_into_lines_that_break(world, options):
    """What resolves is not what works: 28 lines need the version that the requirement keeps."""
    lines = "".join(f"    tensor.ones({number}),\n" for number in range(28))
    world.write("shop/numbers.py", f"import tensor\n\nTABLE = [\n{lines}]\n")
    pinned(world, "tensor<2")
    done = world.json("engine==2.0", *options, expect=9)
    assert "tensor 2.0 breaks 28 lines (shop/numbers.py:4: tensor.ones is gone" in done["fix"]
    assert "--fix" not in done["fix"]
    assert "`areal-upgrade-deps latest engine` finds the newest version that fits" in done["fix"]
    proposal = done["resolution"][0]["proposal"]
    assert (proposal["applied"], proposal["breaking"]) == (False, 28)
    assert changed(world) == []


@pytest.mark.exhaustive
def test_what_a_relaxed_requirement_breaks_is_said_to_be_unknown_where_it_is(world):
    pinned(world, "tensor<2")
    text = world.read("pyproject.toml")
    world.write(
        "pyproject.toml",
        text.replace(
            "[tool.areal.upgrade.packages]", '[tool.areal.upgrade]\nexclude = ["shop"]\n\n[tool.areal.upgrade.packages]'
        ),
    )
    done = world.json("engine==2.0", "--fix", expect=9)
    assert "what tensor 2.0 breaks was not checked: " in done["fix"]
    assert done["resolution"][0]["proposal"]["breaking"] is None


SERVERS = """\
VENV=.venv-engine
uv venv "$VENV"
uv pip install --python "$VENV/bin/python" "engine==1.0"
"""


@pytest.mark.exhaustive
def test_a_server_need_not_fit_the_project(world):
    """engine 2.0 needs tensor 2, the project stays below it."""
    text = world.read("pyproject.toml").replace('    "engine==1.0",  # what we run\n', "")
    world.write("pyproject.toml", text.replace('"tensor",', '"tensor<2",').replace('lock = "uv.lock"\n', ""))
    (world.root / "uv.lock").unlink()
    (world.root / "Dockerfile").unlink()
    world.write("scripts/servers.sh", SERVERS)
    world.run("--write", program="audit")
    world.commit("servers")
    done = world.json("engine==2.0", expect=10)
    (_, environment) = done["resolution"]
    assert (environment["variant"], environment["installs"]) == ("engine", ["engine==2.0"])
    assert [each["distribution"] for each in done["versions"]] == ["engine"], "tensor is the server's alone"
    assert world.read("scripts/servers.sh") == SERVERS.replace("1.0", "2.0")
    assert "tensor<2" in world.read("pyproject.toml")


VARIANTS = """
[tool.areal.upgrade.packages]
engine = { imports = ["engine"], scope = "divergent" }

[tool.areal.upgrade.variants.small]
manifests = ["pyproject.toml"]

[tool.areal.upgrade.variants.large]
manifests = ["large/pyproject.toml"]
"""


@pytest.fixture
def two_variants(world):
    base = world.read("pyproject.toml").partition("[tool.areal.upgrade.packages]")[0]
    world.write("pyproject.toml", base + VARIANTS)
    world.write("large/pyproject.toml", base.replace('"shop"', '"large"').replace("1.0", "1.5"))
    (world.root / "uv.lock").unlink()
    world.commit("variants")
    return world


def test_a_divergent_package_needs_a_variant_and_nobody_is_asked(two_variants):
    done = two_variants.json("engine==2.0", expect=2)
    assert "engine==2.0@small or engine==2.0@large" in done["fix"]
    assert changed(two_variants) == []


def test_only_the_variant_that_was_named_moves(two_variants):
    done = two_variants.json("engine==2.0@large", "--no-lock", expect=10)
    assert [(each["old"], each["new"]) for each in done["versions"]] == [("1.5", "2.0")]
    assert "engine==1.0" in two_variants.read("pyproject.toml")
    assert "engine==2.0" in two_variants.read("large/pyproject.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["engine==2.0", "engine==1.5"], "contradict each other"),
        (["engine==2.0@nowhere"], "unknown variant"),
        (["engine>=2.0"], "names no version"),
        (["engine"], "names no version"),
        (["engine==latest"], "latest"),
        (["engine==2.0", "tensor==2.0", "--from", "1.0"], "--from names no package"),
        (["engine==2.0", "--from", "tensor==1.0"], "tensor is not upgraded here"),
        (["engine==2.0", "--from", "engine==1.0", "--from", "engine==1.5"], "two versions of one package"),
        (["engine==2.0", "--from", "1.0", "--from", "engine==1.5"], "two versions of one package"),
        (["engine==2.0", "--from", "engine==1.0@default"], "has no variant"),
        (["engine==2.0", "--from", "engine=="], "engine=="),
        (["engine==2.0", "--from", "old"], "old"),
        (["engine==2.0", "--from", ""], "version"),
    ],
)
def test_requests_that_make_no_sense_are_refused_before_anything_is_read(world, words, message):
    done = world.json(*words, expect=2)
    assert message in f"{done['error']} {done['where']}"
    assert done["fix"]
    assert changed(world) == []


@pytest.mark.exhaustive
def test_an_override_that_hides_a_requirement_of_the_new_release_is_told(world):
    world.write(
        "pyproject.toml", world.read("pyproject.toml") + '\n[tool.uv]\noverride-dependencies = ["tensor==1.0"]\n'
    )
    (world.root / "uv.lock").unlink()
    world.commit("override")
    done = world.json("engine==2.0", expect=10)
    (warning,) = [each for each in done["warnings"] if "override" in each]
    assert "pyproject.toml:19" in warning
    assert "engine 2.0 requires tensor" in warning
    upgraded = world.json("engine==2.0", "tensor==2.0", expect=10)
    assert not [each for each in upgraded["warnings"] if "override" in each]
