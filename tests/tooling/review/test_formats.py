"""Output for code review platforms, held to the schemas of its formats.

The shapes below are what the specifications of SARIF 2.1.0 and of rdjson ask of the parts that are used here;
the official schemas are no part of this repository. Where they are on disk, AREAL_FORMAT_SCHEMAS names their folder
(sarif-schema-2.1.0.json of oasis-tcs/sarif-spec, DiagnosticResult.json of reviewdog), and output is held to them too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tooling.review.__main__ import main
from tooling.review.rules.catalogue import RULES

LINE = {"type": "integer", "minimum": 1}


def shape(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """An object with these properties and no others."""
    properties = required | optional
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT = {"type": "string", "minLength": 1}
MESSAGE = shape({"text": TEXT})
LEVEL = {"enum": ["none", "note", "warning", "error"]}
ARTIFACT = shape({"uri": {"type": "string", "pattern": r"^[A-Za-z0-9_.~!$&'()*+,;=:@/%-]+$"}, "uriBaseId": TEXT})
PLACE = shape({"physicalLocation": shape({"artifactLocation": ARTIFACT, "region": shape({"startLine": LINE})})})
SUPPRESSION = shape({"kind": {"enum": ["inSource", "external"]}, "justification": TEXT})
RULE = shape(
    {
        "id": TEXT,
        "shortDescription": MESSAGE,
        "fullDescription": MESSAGE,
        "help": MESSAGE,
        "defaultConfiguration": shape({"level": LEVEL}),
    }
)
RESULT = shape(
    {
        "ruleId": TEXT,
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": LEVEL,
        "message": MESSAGE,
        "locations": {"type": "array", "items": PLACE, "minItems": 1},
        "partialFingerprints": {"type": "object", "additionalProperties": TEXT},
    },
    suppressions={"type": "array", "items": SUPPRESSION},
)
VERSION = {"type": "string", "pattern": r"^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"}
DRIVER = shape({"name": TEXT, "semanticVersion": VERSION, "rules": {"type": "array", "items": RULE}})
RUN = shape(
    {
        "tool": shape({"driver": DRIVER}),
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "results": {"type": "array", "items": RESULT},
    }
)
SARIF = shape({"$schema": TEXT, "version": {"const": "2.1.0"}, "runs": {"type": "array", "items": RUN, "minItems": 1}})
DIAGNOSTIC = shape(
    {
        "message": TEXT,
        "location": shape({"path": TEXT, "range": shape({"start": shape({"line": LINE})})}),
        "severity": {"enum": ["ERROR", "WARNING", "INFO"]},
        "code": shape({"value": {"enum": list(RULES)}}),
    }
)
RDJSON = shape({"source": shape({"name": TEXT}), "diagnostics": {"type": "array", "items": DIAGNOSTIC}})
OFFICIAL = {"--sarif": "sarif-schema-2.1.0.json", "--rdjson": "DiagnosticResult.json"}

CODE = """import yaml


def read(text, more=[]):
    more.append(yaml.unsafe_load(text))
    # review: ignore[unsafe-yaml] our own constant
    return yaml.unsafe_load(text)


def wait():
    try:
        read("")
    except Exception:
        pass
"""


@pytest.fixture
def reviewed(world, capsys):
    """Prints a review with findings of several severities, a suppressed one, and a path that has to be quoted."""
    world.commit({"a b%\u00e9[1].py": CODE, "docs/en/a.md": "A\n", "docs/zh/a.md": "A\n"})
    world.commit({"c.py": CODE, "docs/en/a.md": "A\nB\nC\nD\n"})

    def printed(option: str) -> Any:
        main(["--repo", str(world.root), "--commit", "HEAD~1", option])
        first = capsys.readouterr().out
        main(["--repo", str(world.root), "--commit", "HEAD", option])
        return [json.loads(first), json.loads(capsys.readouterr().out)]

    return printed


@pytest.mark.sample(1)
@pytest.mark.parametrize(("option", "schema"), [("--sarif", SARIF), ("--rdjson", RDJSON)])
def test_output_has_the_shape_of_its_format(reviewed, option, schema):
    for document in reviewed(option):
        assert list(jsonschema.Draft202012Validator(schema).iter_errors(document)) == []


@pytest.mark.parametrize("option", OFFICIAL)
def test_output_is_valid_by_the_official_schema(reviewed, option):
    folder = os.environ.get("AREAL_FORMAT_SCHEMAS")
    if not folder:
        pytest.skip("AREAL_FORMAT_SCHEMAS names no folder with the official schemas")
    schema = json.loads((Path(folder) / OFFICIAL[option]).read_text(encoding="utf-8"))
    for document in reviewed(option):
        assert list(jsonschema.validators.validator_for(schema)(schema).iter_errors(document)) == []


@pytest.mark.exhaustive
def test_suppressed_findings_are_marked_in_sarif_and_left_out_of_rdjson(reviewed):
    results = reviewed("--sarif")[0]["runs"][0]["results"]
    (hidden,) = (each for each in results if "suppressions" in each)
    assert hidden["suppressions"] == [{"kind": "inSource", "justification": "our own constant"}]
    assert len(reviewed("--rdjson")[0]["diagnostics"]) == len(results) - 1


def test_severities_keep_their_order(reviewed):
    said = {each["code"]["value"]: each["severity"] for each in reviewed("--rdjson")[1]["diagnostics"]}
    assert (said["unsafe-yaml"], said["swallowed-error"], said["translation-behind"]) == ("ERROR", "WARNING", "INFO")
