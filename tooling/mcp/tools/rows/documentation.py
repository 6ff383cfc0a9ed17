"""Tools of `areal-docs`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tooling.mcp.tools.records import NO_OPTION, Check, Tool, switch, words

_DOCUMENTATION: Final = "tooling.documentation.__main__:main"
_PAGES: Final = words("pages", NO_OPTION, "Pages or their translations; default: all.", check=Check.INSIDE)
_NO_HISTORY: Final = switch("no_history", "--no-history", "Do not ask git: no old texts.")

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="docs_zh_check",
        title="Check translated pages",
        help="Says of translated pages, section by section, whether they follow their source, and what changed.",
        program="areal-docs",
        main=_DOCUMENTATION,
        words=("zh-check",),
        parameters=(_PAGES, switch("no_diff", "--no-diff", "Leave out how the source changed."), _NO_HISTORY),
        fields={"pages": "array"},
        example={"pages": ["docs/concepts.md"]},
    ),
    Tool(
        name="docs_zh_tasks",
        title="What is left to translate",
        help="One task per section that lags, with the old source, the new source, and the translation of now. When it "
        "is translated: docs_zh_mark.",
        program="areal-docs",
        main=_DOCUMENTATION,
        words=("zh-plan",),
        parameters=(_PAGES, _NO_HISTORY),
        fields={"tasks": "array"},
    ),
    Tool(
        name="docs_zh_mark",
        preview="docs_zh_mark_plan",
        title="Mark translated pages",
        help="Records that pages follow their source as it is now; refused where headings or structure differ.",
        program="areal-docs",
        main=_DOCUMENTATION,
        words=("zh-mark",),
        parameters=(
            replace(_PAGES, required=True, help="Pages or their translations."),
            switch("diff", "--diff", "Show unified diffs in `plan`."),
        ),
        fields={},
        writes=True,
        idempotent=True,
        example={"pages": ["docs/concepts.md"]},
    ),
)
