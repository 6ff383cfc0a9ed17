"""Which lines of a page a program keeps up to date."""

import pytest

from tooling.documentation.pages import without_generated

NAMES = ["made:*"]


@pytest.mark.parametrize(
    ("page", "kept"),
    [
        ("a\n<!-- made:x -->\nb\n<!-- /made:x -->\nc", "a\n\n\n\nc"),
        (
            "<!-- other -->\n<!-- made:x: begin -->\nb\n<!-- made:x: end -->\n<!-- /other -->",
            "<!-- other -->\n\n\n\n<!-- /other -->",
        ),
        ("<!-- made:x -->\n<!-- made:x -->\nb\n<!-- /made:x -->\nc\n<!-- /made:x -->\nd", "\n\n\n\n\n\nd"),
        ("a\r\n<!-- made:x -->\r\nb\r\n<!-- /made:x -->\r\nc", "a\r\n\r\n\r\n\r\nc"),
    ],
)
def test_a_region_is_emptied_and_all_other_lines_keep_their_numbers(page, kept):
    assert without_generated(page, NAMES) == kept


@pytest.mark.parametrize(
    "page",
    [
        "```html\n<!-- made:x -->\nb\n<!-- /made:x -->\n```\n",
        "~~~~\n~~~\n<!-- made:x -->\nb\n~~~~\n<!-- /made:x -->\n",
        "<!-- made:x -->\nno end\n",
        "<!-- other -->\nb\n<!-- /other -->\n",
    ],
)
def test_examples_and_halves_are_not_regions(page):
    assert without_generated(page, NAMES) == page
