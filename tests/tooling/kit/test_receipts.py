"""Receipts round-trip byte for byte, and a damaged or hostile one is refused by the part that is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.change.plan import sha256
from tooling.kit.kind import DocumentEntry, RegistryEntry
from tooling.kit.names import Names
from tooling.kit.receipts import (
    Proof,
    Receipt,
    ReceiptFile,
    TemplateReference,
    parse_receipt,
    read_receipt,
    read_receipts,
    receipt_path,
)

NAMES = Names("Digits-Hard", "digits_hard", "DigitsHard", "DIGITS_HARD", "digits-hard", "digits_hard", "digits hard")
RECEIPT = Receipt(
    kind="reward",
    names=NAMES,
    generator="areal-new 0.1.0",
    template=TemplateReference("project", "templates/reward", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"),
    answers={"style": "exact", "weights": [1, 2.5, None], "note": "über"},
    package="areal",
    tests="tests",
    symbols=("digits_hard_reward",),
    files={
        "areal/reward/digits_hard.py": ReceiptFile(
            sha256(b"x"), "the reward", "areal/api/reward.py:RewardFunction", ("say what is right",)
        ),
        "tests/areal/reward/test_digits_hard.py": ReceiptFile(sha256(b"y"), "its test", test=True),
    },
    entries=(RegistryEntry("areal/reward/registry.py", "mapping", "REWARDS", "digits_hard", "areal.x:y"),),
    documents=(DocumentEntry("docs/extensions.md", "rewards", "digits_hard", "| `digits_hard` | x |"),),
    unproven=(RegistryEntry("areal/reward/registry.py", "sequence", "UNPROVEN", "digits_hard"),),
    proof=Proof("proven", ("tests/areal/reward/test_digits_hard.py",), {"passed": 3}, sha256(b"z")),
)


def store(root, receipt=RECEIPT, content=None):
    path = root / receipt.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(receipt.to_bytes() if content is None else content)
    return path


def tampered(change):
    document = json.loads(RECEIPT.to_bytes())
    change(document)
    return json.dumps(document).encode()


def test_a_receipt_reads_back_as_it_was_written(tmp_path):
    store(tmp_path)
    read = read_receipt(tmp_path, "reward", "digits_hard")
    assert read == RECEIPT
    assert read.to_bytes() == RECEIPT.to_bytes()
    assert read.name == "digits_hard"
    assert read.tests_of_unit == ("tests/areal/reward/test_digits_hard.py",)


def test_the_file_is_sorted_readable_json_that_ends_with_a_line_feed():
    text = RECEIPT.to_bytes().decode()
    assert text.endswith("}\n")
    assert "über" in text
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_equal_units_give_equal_bytes_whatever_the_order_they_were_put_together():
    answers = dict(reversed(RECEIPT.answers.items()))
    files = dict(reversed(RECEIPT.files.items()))
    assert replace(RECEIPT, answers=answers, files=files).to_bytes() == RECEIPT.to_bytes()


def test_of_a_unit_of_an_earlier_version_no_proof_is_known(tmp_path):
    store(tmp_path, content=tampered(lambda document: (document.pop("proof"), document.pop("unproven"))))
    read = read_receipt(tmp_path, "reward", "digits_hard")
    assert (read.proof, read.unproven) == (Proof(), ())


def test_receipts_are_listed_by_kind_and_name(tmp_path):
    assert read_receipts(tmp_path) == []
    store(tmp_path)
    other = replace(RECEIPT, kind="dataset")
    store(tmp_path, other)
    assert [(receipt.kind, receipt.name) for receipt in read_receipts(tmp_path)] == [
        ("dataset", "digits_hard"),
        ("reward", "digits_hard"),
    ]
    assert read_receipt(tmp_path, "reward", "other") is None


@pytest.mark.parametrize("part", ["", "..", "a/b", ".hidden", "a\\b"])
def test_a_unit_whose_name_is_no_file_name_has_no_receipt_path(part):
    with pytest.raises(UsageError):
        receipt_path("reward", part)
    with pytest.raises(UsageError):
        receipt_path(part, "digits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema=2), "schema 2; this areal-new reads schema 1"),
        (lambda d: d.pop("schema"), "schema None"),
        (lambda d: d.update(extra=1), "unknown parts: extra"),
        (lambda d: d.update(kind=3), "`kind` is not text"),
        (lambda d: d.update(name="other"), "`name` 'other'"),
        (lambda d: d["names"].pop("const"), "`names` needs the texts"),
        (lambda d: d["names"].update(snake="../x"), "`name` 'digits_hard' is not|is not an identifier"),
        (lambda d: d["template"].update(tree=5), "`template` needs the texts"),
        (lambda d: d.update(answers=[]), "`answers` is not an object"),
        (lambda d: d["settings"].update(register="yes"), "`register` is neither true nor false"),
        (lambda d: d.update(symbols="x"), "`symbols` is not a list"),
        (lambda d: d["files"].update({"../../etc/passwd": {}}), "tampered with|nothing usable"),
        (lambda d: d["files"]["areal/reward/digits_hard.py"].update(sha256="abc"), "no SHA-256 of areal/reward"),
        (lambda d: d["files"]["areal/reward/digits_hard.py"].pop("todo"), "nothing usable about"),
        (lambda d: d["entries"][0].update(file="/etc/passwd"), "tampered with: `entries` has an unsafe path"),
        (lambda d: d["entries"][0].update(shape="regex"), "unknown shape 'regex'"),
        (lambda d: d["documents"][0].update(file="docs/../../x"), "tampered with: `documents`"),
        (lambda d: d.update(documents={}), "`documents` is not a list"),
        (lambda d: d["unproven"][0].update(file="../x"), "tampered with: `unproven` has an unsafe path"),
        (lambda d: d.update(proof="proven"), "`proof` says nothing usable"),
        (lambda d: d["proof"].pop("tested"), "`proof` says nothing usable"),
        (lambda d: d["proof"].update(state="perfect"), "unknown state 'perfect'"),
        (lambda d: d["proof"].update(state=["proven"]), "unknown state"),
        (lambda d: d["proof"].update(tested=""), "`proof` has no SHA-256"),
        (lambda d: d["proof"].update(outcomes={"passed": "all"}), "`proof.outcomes` does not count"),
        (lambda d: d["proof"].update(tests=["/etc/passwd"]), "tampered with: `proof.tests`"),
    ],
)
def test_a_damaged_receipt_is_refused_by_the_part_that_is_wrong(tmp_path, change, message):
    store(tmp_path, content=tampered(change))
    with pytest.raises(UsageError, match=message) as caught:
        read_receipt(tmp_path, "reward", "digits_hard")
    assert caught.value.where == RECEIPT.path
    assert caught.value.fix


@pytest.mark.parametrize("path", ["../outside.py", "/etc/passwd", "a//b.py", "./a.py", ".git/hooks/pre-commit", "C:/x"])
def test_no_receipt_can_name_a_file_outside_the_repository(tmp_path, path):
    def add(document):
        document["files"][path] = document["files"]["areal/reward/digits_hard.py"]

    store(tmp_path, content=tampered(add))
    with pytest.raises(UsageError, match="tampered with"):
        read_receipt(tmp_path, "reward", "digits_hard")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'"text"', b"[" * 100_000, b"1" * 5000, b'{"a": "\\ud800"}']
)
def test_a_file_that_is_no_object_is_refused(content):
    with pytest.raises(UsageError, match=r"is not (?:a )?JSON"):
        parse_receipt(content, RECEIPT.path)


def test_a_receipt_in_the_place_of_another_unit_is_refused():
    with pytest.raises(UsageError, match="belongs in"):
        parse_receipt(RECEIPT.to_bytes(), ".areal/receipts/reward/other.json")


def test_a_link_in_the_place_of_a_receipt_is_not_followed(tmp_path):
    real = tmp_path / "real.json"
    real.write_bytes(RECEIPT.to_bytes())
    path = tmp_path / RECEIPT.path
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    with pytest.raises(ConflictError, match="symbolic link"):
        read_receipt(tmp_path, "reward", "digits_hard")
