r"""Programming exercises with cases, in the shapes that public sets have, for the reward `code`.

A raw row is of one of these shapes; each row is recognised by its columns:

    APPS, TACO      {"question": "Add two numbers ...", "starter_code": "",
                     "input_output": "{\"inputs\": [\"1 2\\n\"], \"outputs\": [\"3\\n\"]}",
                     "time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes"}          (limits: TACO only)
    ... a function  "input_output": "{\"fn_name\": \"add\", \"inputs\": [[1, 2]], \"outputs\": [[3]]}"
    LiveCodeBench   {"question_content": "Add ...", "starter_code": "", "metadata": "{\"func_name\": \"add\"}",
                     "public_test_cases": "[{\"input\": \"1\\n2\", \"output\": \"3\", \"testtype\": \"functional\"}]",
                     "private_test_cases": "..."}                     (JSON, or base64 of zlib of a pickle of JSON)

A row becomes {"messages", "cases", "fn_name", "language", "time_limit", "memory_limit"}; `cases` is JSON text
(`areal.reward.cases` says of what). A pickle is never loaded: it may hold one text and nothing else, and that text is
read out of its bytes. path "" reads a few packaged rows of each shape; the sets are the hub ids "codeparrot/apps",
"BAAI/TACO" and "livecodebench/code_generation_lite". (Hendrycks et al. 2021, arXiv:2105.09938; Li et al. 2023,
arXiv:2312.14852; Jain et al. 2024, arXiv:2403.07974.)
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import pickletools
import re
import zlib
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.dataset.building import rl_dataset, user_prompt
from areal.dataset.reading import FIXTURES, read_rows
from areal.dataset.schema import complain
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from datasets import Dataset

logger = getLogger(__name__)

LANGUAGES: Final = {"cpp": "C++", "javascript": "JavaScript", "python": "Python"}
_MAX_DECODED_BYTES: Final = 256 << 20
_TEXT_OPCODES: Final = frozenset({"BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE"})
_IDLE_OPCODES: Final = frozenset({"BINPUT", "FRAME", "LONG_BINPUT", "MEMOIZE", "PROTO", "PUT", "STOP"})
_AMOUNT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_SECONDS: Final = {"": 1.0, "s": 1.0, "second": 1.0, "seconds": 1.0, "ms": 0.001, "milliseconds": 0.001}
_MEGABYTES: Final = {
    "": 1.0, "mb": 1.0, "megabyte": 1.0, "megabytes": 1.0, "gb": 1024.0, "gigabytes": 1024.0,
    "kb": 1 / 1024, "kilobytes": 1 / 1024, "bytes": 1 / (1 << 20),
}  # fmt: skip  # one line per unit says nothing


def get_code_rl_dataset(
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    language: str = "python",
    max_cases: int = 0,
    private: bool = True,
    instruction: str | None = None,
) -> Dataset:
    """Return `messages`, `cases`, `fn_name`, `language`, `time_limit` and `memory_limit`.

    language: python, cpp or javascript, what the prompt asks for. max_cases: keep the first so many; 0 keeps all.
    private: use LiveCodeBench's hidden cases, too. instruction: replaces what is said after the exercise; "" says
    nothing. Rows without any case are dropped and counted in the log, as are prompts of more than `max_length` tokens.
    """
    if language not in LANGUAGES:
        raise ConfigError(f"language is {language!r}, expected one of {', '.join(LANGUAGES)}")
    if max_cases < 0:
        raise ConfigError(f"max_cases is {max_cases}, expected 0 or more")
    raw = read_rows(path or str(FIXTURES / "code"), split)
    rows: list[dict[str, Any]] = []
    problems: list[tuple[str, str]] = []
    num_empty = 0
    for index, row in enumerate(raw.rows):
        try:
            question, function, cases = exercise(row, private=private)
            limits = {
                "time_limit": _amount(row.get("time_limit"), _SECONDS, "time_limit"),
                "memory_limit": _amount(row.get("memory_limit"), _MEGABYTES, "memory_limit"),
            }
        except ValueError as error:
            problems.append((raw.where(index), str(error)))
            continue
        if not cases:
            num_empty += 1
            continue
        starter = str(row.get("starter_code") or "").rstrip()
        text = question.rstrip() + (f"\n\nStart from:\n```\n{starter}\n```" if starter else "")
        said = instruction
        if said is None:
            task = f"defines `{function}`" if function else "reads standard input and writes standard output"
            said = f"Write {LANGUAGES[language]} that {task}, in one block fenced as ```{language}."
        rows.append(
            {
                "messages": user_prompt(text, f"\n{said}" if said else "", tokenizer),
                "cases": json.dumps(cases[: max_cases or None]),
                "fn_name": function,
                "language": language,
                **limits,
            }
        )
    complain(raw.source, problems)
    if num_empty:
        logger.warning("%s: dropped %d of %d rows, which have no cases", raw.source, num_empty, len(raw.rows))
    return rl_dataset(raw, rows, tokenizer, max_length)


def exercise(row: dict[str, Any], *, private: bool = True) -> tuple[str, str, list[dict[str, Any]]]:
    """Return question, name of the function ("" for a whole program) and cases of a raw row of any shape.

    Raises ValueError that says what is wrong with it.
    """
    if "input_output" in row:
        return _text(row, "question"), *_apps_cases(row["input_output"])
    if "public_test_cases" in row:
        return _text(row, "question_content"), *_livecodebench_cases(row, private=private)
    found = ", ".join(sorted(map(str, row))) or "none"
    raise ValueError(f"expected a column input_output (APPS, TACO) or public_test_cases (LiveCodeBench), found {found}")


def decode_private_cases(text: str) -> Any:
    """Return the value of a column `private_test_cases`: JSON, or base64 of zlib of a pickle of JSON text.

    Raises ValueError for anything else, above all for a pickle with more in it than one text.
    """
    if text.lstrip().startswith("["):
        return _json(text, "private_test_cases")
    try:
        packed = base64.b64decode(text, validate=True)
        expand = zlib.decompressobj()
        raw = expand.decompress(packed, _MAX_DECODED_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise ValueError(f"private_test_cases is neither JSON nor base64 of zlib: {error}") from error
    if expand.unconsumed_tail:
        raise ValueError(f"private_test_cases unpacks to more than {_MAX_DECODED_BYTES >> 20} MB")
    # Loading a pickle runs whatever it says; its opcodes can be read without doing so.
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            if opcode.name in _TEXT_OPCODES:
                texts.append(str(argument))
            elif opcode.name not in _IDLE_OPCODES:
                raise ValueError(f"its pickle has an opcode {opcode.name}, and may hold one text only: not loaded")
    except Exception as error:
        raise ValueError(f"private_test_cases cannot be decoded: {error}") from error
    if len(texts) != 1:
        raise ValueError(f"private_test_cases holds {len(texts)} texts in its pickle, expected one")
    return _json(texts[0], "private_test_cases")


def _apps_cases(column: Any) -> tuple[str, list[dict[str, Any]]]:
    if isinstance(column, str):
        if not column.strip():
            return "", []
        column = _json(column, "input_output")
    if not isinstance(column, dict):
        raise ValueError(f"input_output is {type(column).__name__}, expected a mapping with inputs and outputs")
    inputs, outputs = column.get("inputs") or [], column.get("outputs") or []
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("input_output: inputs and outputs are not lists of one length")
    function = column.get("fn_name") or ""
    if not isinstance(function, str):
        raise ValueError(f"input_output: fn_name is {function!r:.60}, expected a text")
    if function:
        return function, [_call(i, o) for i, o in zip(inputs, outputs, strict=True)]
    return "", [{"input": _lines(i), "output": _lines(o)} for i, o in zip(inputs, outputs, strict=True)]


def _call(arguments: Any, result: Any) -> dict[str, Any]:
    if not isinstance(arguments, list):
        raise ValueError(f"input_output: the arguments of a call are {arguments!r:.60}, expected a list")
    # The sets wrap most results into a list of one, but not all: as in their own checkers, either counts.
    if isinstance(result, list) and len(result) == 1:
        return {"arguments": arguments, "results": [result, result[0]]}
    return {"arguments": arguments, "result": result}


def _livecodebench_cases(row: dict[str, Any], *, private: bool) -> tuple[str, list[dict[str, Any]]]:
    tests = _json(row["public_test_cases"] or "[]", "public_test_cases")
    hidden = row.get("private_test_cases")
    if private and hidden:
        tests = [*tests, *(decode_private_cases(hidden) if isinstance(hidden, str) else hidden)]
    metadata = row.get("metadata") or {}
    metadata = _json(metadata, "metadata") if isinstance(metadata, str) else metadata
    function = str(metadata.get("func_name") or "") if isinstance(metadata, dict) else ""
    cases: list[dict[str, Any]] = []
    for number, test in enumerate(tests, 1):
        if not isinstance(test, dict) or not isinstance(test.get("input"), str) or not isinstance(test["output"], str):
            raise ValueError(f"test case {number} is {test!r:.60}, expected a mapping with the texts input and output")
        if (test.get("testtype") == "functional") is not bool(function):
            raise ValueError(f"test case {number} is {test.get('testtype')!r} and metadata has func_name {function!r}")
        if function:
            arguments = [_json(line, f"test case {number}") for line in test["input"].split("\n") if line.strip()]
            cases.append({"arguments": arguments, "result": _json(test["output"], f"test case {number}")})
        else:
            cases.append({"input": test["input"], "output": test["output"]})
    return function, cases


def _json(text: Any, where: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error


def _lines(value: Any) -> str:
    """Return the text of an input or output, which may be a list of lines."""
    if isinstance(value, list):
        return "\n".join(map(_lines, value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"input_output: {value!r:.60} is neither a text nor a list of lines")
    return str(value)


def _text(row: dict[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{column} is {value!r:.60}, expected a text that is not empty")
    return value


def _amount(value: Any, units: dict[str, float], column: str) -> float | None:
    """Return seconds or megabytes from what sets write: 2, "2.0 seconds", "256.0 megabytes", "None" or nothing."""
    if value is None or (isinstance(value, str) and value.strip().lower() in {"", "none", "null", "nan"}):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) and value > 0 else None
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{column} is {value!r:.60}, expected a number and one of {', '.join(filter(None, units))}")
    return float(match[1]) * units[match[2].lower()] or None
