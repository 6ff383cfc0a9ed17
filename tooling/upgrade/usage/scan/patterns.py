"""Patterns of `match`: what they name, what they bind, and what they compare.

case "4.0" | "4.1":             (version) == "4.0" or (version) == "4.1"
case Point(0, y=place):         a Point takes one by position, and `place` is its `y`
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.upgrade.usage.facts import UNKNOWN

if TYPE_CHECKING:
    from tooling.upgrade.usage.scan.annotations import AnnotationWalk
    from tooling.upgrade.usage.scan.core import WalkState
    from tooling.upgrade.usage.scan.expressions import ExpressionReader


class PatternReader:
    """Patterns of one file."""

    def __init__(self, walk: WalkState, annotations: AnnotationWalk, expressions: ExpressionReader) -> None:
        self.walk = walk
        self.annotations = annotations
        self.expressions = expressions

    def condition(self, pattern: ast.pattern, subject: ast.expr, shown: str) -> int:
        """Note the uses in a pattern and bind its names; return the condition that it stands for, 0 if it says nothing.

        subject: what is matched. shown: its source.
        """
        for inner in reversed([*ast.walk(pattern)]):
            if isinstance(inner, ast.MatchAs | ast.MatchStar) and inner.name:
                kind = getattr(getattr(inner, "pattern", None), "cls", None)
                value = self.walk.step("instance", self.annotations.chain(kind)) if kind else UNKNOWN
                self.walk.bind(inner.name, value, subject if inner is pattern else None)
            elif isinstance(inner, ast.MatchClass):
                self._class_pattern(inner)
            elif isinstance(inner, ast.MatchValue):
                self.expressions.expression(inner.value)
        text = self._compared(pattern, f"({shown})")
        if text:
            return self.walk.test_text(text, subject) + 1
        bare = pattern.pattern if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None else pattern
        if isinstance(bare, ast.MatchClass):
            held = self.walk.step("instance", self.annotations.chain(bare.cls))
            for name in (getattr(pattern, "name", None), subject.id if isinstance(subject, ast.Name) else None):
                if name and held:
                    self.walk.frame.values[name] = held
        return 0

    def _compared(self, pattern: ast.pattern, shown: str) -> str:
        """A pattern of values as a comparison: `["4", *_]` compares the first element; "" for others."""
        if isinstance(pattern, ast.MatchValue):
            return f"{shown} == {self.walk.text(pattern.value)}"
        if isinstance(pattern, ast.MatchSingleton):
            return f"{shown} is {pattern.value}"
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
            return self._compared(pattern.pattern, shown)
        if isinstance(pattern, ast.MatchOr):
            texts = [self._compared(each, shown) for each in pattern.patterns]
            return " or ".join(texts) if all(texts) else ""
        parts = pattern.patterns if isinstance(pattern, ast.MatchSequence) else []
        ends = isinstance(parts[-1], ast.MatchStar) if parts else True
        fixed = [each for each in parts if not isinstance(each, ast.MatchStar)]
        free = [each for each in fixed if isinstance(each, ast.MatchAs) and each.pattern is None]
        texts = [
            f"({text})" for number, each in enumerate(fixed) if (text := self._compared(each, f"{shown}[{number}]"))
        ]
        if not texts or len(texts) + len(free) < len(fixed) or len(fixed) + ends < len(parts):
            return ""
        return " and ".join(texts if ends else [f"len({shown}) == {len(fixed)}", *texts])

    def _class_pattern(self, pattern: ast.MatchClass) -> None:
        """`case Point(0, y=place)`: how many it takes by position, and what its attributes are bound to."""
        kind = self.expressions.expression(pattern.cls, read=False)
        self.walk.emit("isinstance", pattern.cls, kind, count=len(pattern.patterns))
        for name, inner in zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True):
            value = self.walk.attribute(self.walk.step("instance", kind), name)
            self.walk.emit("read", inner, value)
            if isinstance(inner, ast.MatchAs) and inner.pattern is None and inner.name:
                self.walk.bind(inner.name, value)
