"""`python -m areal.porting SOURCE`: what a decoder architecture computes, for people or (`--json`) programs.

    python -m areal.porting llama
    python -m areal.porting checkpoints/novel --trust-source --json

Exit codes: 0 a report was written, also one that says "unsupported"; 2 a source that cannot be analysed; 14 the
analysis itself failed. With --json there is exactly one object on stdout, also on failure: {"ok": false, "error":
"...", "kind": "...", "nearest": [], "others": []}: the nearest proven families, and types of transformers that are
alike; of a failed analysis {"ok": false, "bug": true, "phase", "evidence", "config", "traceback"} besides.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.utils.special_numbers import tagged, untagged

if TYPE_CHECKING:
    from collections.abc import Sequence

FAILED = 2
BUG = 14
ADVICE: Final = {
    "LikeError": "Leave out --like, or name a family of transformers that is proven.",
    "ModelingError": "Name the file with --modeling.",
    "UnknownConfigError": "Give its code with --modeling, or take a family's computation over with --like.",
    "UnknownTypeError": "Give a checkpoint folder, its code with --modeling, or its config.json with --like.",
    "UntrustedSourceError": "If you trust it, pass --trust-source; --static only reads it.",
}
"""What to do about an error, by its class: the errors know of no command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m areal.porting", description=__doc__.splitlines()[0])
    parser.add_argument("source", help="model_type of transformers, checkpoint folder, or config.json")
    parser.add_argument("--tiny", type=Path, metavar="FILE", help="JSON with values for fields of the tiny config")
    parser.add_argument("--modeling", type=Path, metavar="FILE", help="modeling file of a type that no library has")
    parser.add_argument("--trust-source", action="store_true", help="run the modeling code of the folder")
    parser.add_argument("--static", action="store_true", help="do not run code that is not trusted, only read it")
    parser.add_argument(
        "--like", metavar="FAMILY", help="for a type without code: take this family's computation over, unproven"
    )
    parser.add_argument("--unit", default="", metavar="NAME", help="folder of the family that the report is for")
    parser.add_argument("--look-up", action="store_true", help="only say, in a second, whether there is such a source")
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from areal.porting.records import SubjectError

    try:
        with contextlib.redirect_stdout(sys.stderr):  # code of strangers may print
            report = _analyse(options)
    except SubjectError as error:
        kind = type(error).__name__
        nearest, others = list(getattr(error, "nearest", ())), list(getattr(error, "others", ()))
        if options.json:
            answer = {"ok": False, "error": str(error), "kind": kind, "nearest": nearest, "others": others}
            if kind == "UnknownConfigError":
                answer |= {name: getattr(error, name, None) for name in ("config", "tensors", "text_type")}
            _write(answer)
        else:
            near = [f"  {each['model_type']}: {each['reason']}" for each in nearest]
            lines = [str(error), *(["nearest proven families:", *near] if near else []), ADVICE.get(kind, "")]
            said = "\n".join(filter(None, lines))
            sys.stderr.write("\n".join(map(_printable, said.splitlines())) + "\n")
        return FAILED
    except Exception as error:  # noqa: BLE001 - the boundary: whatever escapes an analysis is a bug, and is said to be
        return _bug(error, as_json=options.json)
    if options.json or options.look_up:
        _write(report)
    else:
        sys.stdout.write("\n".join(_lines(report)) + "\n")
    return 0


def _bug(error: Exception, *, as_json: bool) -> int:
    """Say what failed inside of an analysis, and what was found until then; return the exit code."""
    import traceback

    phase = str(getattr(error, "phase", "start"))
    answer: dict[str, Any] = {
        "ok": False,
        "bug": True,
        "error": f"the analysis failed in its phase {phase!r}: {error}",
        "kind": type(error).__name__,
        "phase": phase,
        "evidence": list(getattr(error, "evidence", ())),
        "config": dict(getattr(error, "config", {})),
        "traceback": traceback.format_exception(error),
    }
    if as_json:
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        return BUG
    found = [f"  {each['feature']}: {each['value']}" for each in answer["evidence"]]
    said = [*answer["traceback"], str(answer["error"]), *(["found so far:", *found] if found else [])]
    said.append(
        "This is a bug of areal, not of the model: report it with what stands above and the files of the model."
    )
    sys.stderr.write("\n".join(_printable(line) for text in said for line in text.splitlines()) + "\n")
    return BUG


def _analyse(options: argparse.Namespace) -> dict[str, Any]:
    """Return the report as JSON. What no report can be made of is refused before torch and transformers are
    imported."""
    from areal.porting.probe.lookup import UntrustedSourceError, find_family, locate

    tiny = _read_tiny(options.tiny)
    trusted = True
    if options.like is not None:
        find_family(options.like)
    else:
        try:
            named = locate(options.source, modeling=options.modeling, trust=options.trust_source)
        except UntrustedSourceError:
            if not options.static:
                raise
            trusted = False
    if options.look_up:
        return {"ok": True}
    gc.disable()  # of what imports make almost all stays: looking through it again and again is a quarter of their time
    try:
        from areal.porting.bind.analyse import analyse, as_json, like, static
        from areal.porting.probe.subject import resolve
        from areal.porting.wrap.analyse import analyse_wrapped
        from areal.porting.wrap.whole import find_wrapped
    finally:
        gc.freeze()
        gc.enable()
    if options.like is not None:
        return as_json(like(options.source, options.like))
    if not trusted:
        return as_json(static(options.source, modeling=options.modeling))
    wrapped = None if named.files else find_wrapped(named.model_type, named.config)
    if wrapped is not None:
        return analyse_wrapped(wrapped, unit=options.unit, tiny=tiny)
    return as_json(analyse(resolve(options.source, modeling=options.modeling, trust=options.trust_source), tiny=tiny))


def _read_tiny(path: Path | None) -> dict[str, Any] | None:
    from areal.porting.records import SubjectError

    if path is None:
        return None
    try:
        values = untagged(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SubjectError(f"{path} of --tiny is not readable JSON: {error}.") from error
    if not isinstance(values, dict):
        raise SubjectError(f"{path} of --tiny holds a {type(values).__name__} instead of an object.")
    return values


def _write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(tagged(value)) + "\n")


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [f"{report['model_type']} ({report['architecture']}, {report['source']}): {report['status']}"]
    lines += [report["title"]] if report["title"] else []
    for line in report["evidence"]:
        margin = "" if line["margin"] is None else f", margin {line['margin']:.3g}"
        lines.append(f"  {line['feature']}: {line['value']} [{line['source']}: {line['detail']}{margin}]")
    if report["slots"]:
        lines += ["", "values of all configs"]
        lines += [f"  {slot} = {json.dumps(value)}" for slot, value in report["slots"].items()]
    if report["fields"]:
        lines += ["", "config fields"]
        for use in report["fields"]:
            detail = f" {use['allowed']}" if use["allowed"] else ""
            lines.append(f"  {use['name']}: {use['status']}{detail} {use['reason']}".rstrip())
    if report["missing"]:
        lines += ["", "not supported"]
        lines += [f"  {each['feature']} at {each['where']}: {each['detail']}" for each in report["missing"]]
    spent = ", ".join(f"{name} {value:.1f}" for name, value in report["seconds"].items())
    return [_printable(line) for line in [*lines, "", f"seconds: {spent}"]]


def _printable(text: str) -> str:
    """Control characters of foreign sources must not reach a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


if __name__ == "__main__":
    if "--trust-source" not in sys.argv:
        raise SystemExit(main())
    from areal.porting.confine import confined

    with confined():
        raise SystemExit(main())
