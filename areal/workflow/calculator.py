"""A calculator as a tool: exact arithmetic on expressions a model wrote. Bounded in size, and never evaluated as code.

"(3 + 4.5) * 2" -> "15";  "2 ** 10 / 3" -> "341.333333333";  "9 ** 9 ** 9" -> ToolError

Understood are numbers, + - * / // % **, signs and parentheses; everything else, names included, is refused. Numbers
are fractions, so 0.1 + 0.2 is 0.3; a result that is not a whole number is shown with 12 significant digits.
"""

from __future__ import annotations

import ast
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from areal.workflow.tool_calls import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MAX_CHARACTERS: Final = 200
_MAX_BITS: Final = 512
"""Of numerator and denominator, of every intermediate result."""
_MAX_EXPONENT: Final = 512

_BINARY: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Fraction], Fraction]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class Calculator:
    """A `Tool`: evaluates one arithmetic expression."""

    name: Final = "calculator"
    description: Final = "Evaluates an arithmetic expression of numbers, + - * / // % ** and parentheses."
    parameters: Final[Mapping[str, Any]] = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "for example (3 + 4.5) * 2"}},
        "required": ["expression"],
    }

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Return the value as text; it takes microseconds, so it runs on the event loop. Raises ToolError."""
        return calculate(arguments["expression"])


def calculate(expression: str) -> str:
    """Value of an expression as text. Raises ToolError, its message meant for the model, when there is none."""
    if len(expression) > _MAX_CHARACTERS:
        raise ToolError(f"the expression has {len(expression)} characters, at most {_MAX_CHARACTERS} are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    # MemoryError is how Python's parser refuses nesting that is too deep.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError("the expression is not valid arithmetic") from error
    value = _value(tree.body)
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(_fraction(number))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            try:
                return _bounded(Fraction(_BINARY[type(sign)](_value(left), _value(right))))
            except ZeroDivisionError as error:
                raise ToolError("division by zero") from error
    raise ToolError("only numbers, + - * / // % **, signs and parentheses are understood")


def _fraction(number: float) -> Fraction:
    try:
        return Fraction(str(number))
    except ValueError as error:  # a literal such as 1e999 is infinite
        raise ToolError("a number is too large") from error


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_EXPONENT:
        raise ToolError(f"an exponent must be a whole number from -{_MAX_EXPONENT} to {_MAX_EXPONENT}")
    # Checked before it is computed: this is where a short expression becomes a huge number.
    if abs(exponent) * (_bits(base) - 1) > _MAX_BITS:
        raise ToolError("a result is too large")
    try:
        return _bounded(Fraction(base ** int(exponent)))
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > _MAX_BITS:
        raise ToolError("a result is too large")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


CALCULATOR: Final = Calculator()
"""What `tools: ["areal.workflow.calculator:CALCULATOR"]` names."""
