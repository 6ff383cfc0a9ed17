"""Conflicts, own pins in the way, variants, overrides, and requests that contradict each other."""

import pytest


def pinned(world, line):
    """The project asks for a version of tensor itself."""
    world.write("pyproject.toml", world.read("pyproject.toml").replace('"tensor",', f'"{line}",'))
    world.commit("pin")


def changed(world):
    return [line[3:] for line in world.git("status", "--porcelain", "-uall").splitlines()]


def test_a_conflict_ends_with_9_and_leaves_the_audit_and_the_summary_alone(world):
    pinned(world, "tensor==1.0")
    done = world.json("engine==2.0", "tensor==1.0", expect=9)
    assert done["code"] == "resolution"
    (resolution,) = done["resolution"]
    assert "engine==2.0 requires tensor>=2,<3" in resolution["conflict"]["words"]
    assert "tensor" in resolution["conflict"]["raw"]
    assert {each["kind"] for each in done["findings"]} >= {"moved", "removed", "param-renamed"}
    assert changed(world) == ["upgrade-summary.md"]
    summary = world.read("upgrade-summary.md")
    assert "It did not succeed; nothing else was written." in summary
    assert "shop/end.py:5" in summary
    assert "engine==2.0 requires tensor" in summary.replace("\\", "")


def test_an_own_pin_that_is_the_only_obstacle_is_named_with_the_way_out(world):
    pinned(world, "tensor<2")
    done = world.json("engine==2.0", expect=9)
    assert done["where"] == "pyproject.toml:7"
    assert "--fix writes tensor" in done["fix"]
    proposal = done["resolution"][0]["proposal"]
    assert (proposal["path"], proposal["line"], proposal["before"]) == ("pyproject.toml", 7, "<2")
    assert proposal["applied"] is False
    assert changed(world) == ["upgrade-summary.md"]
    assert proposal["after"] in world.read("upgrade-summary.md")


def test_an_own_pin_that_is_the_only_obstacle_is_relaxed_with_fix(world):
    pinned(world, "tensor<2")
    done = world.json("engine==2.0", "--fix", expect=10)
    proposal = done["resolution"][0]["proposal"]
    assert proposal["applied"] is True
    assert f'"tensor{proposal["after"]}",' in world.read("pyproject.toml")
    assert 'name = "tensor"\nversion = "2.0"' in world.read("uv.lock")
    assert "shop/numbers.py" in {each["path"] for each in done["findings"]}


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
