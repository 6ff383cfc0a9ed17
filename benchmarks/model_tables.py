"""Writes the coverage tables of docs/models.md, and the list of proven types, from saved results of the matrix command.

    areal-new model --matrix FAMILIES.json --json > listed.json
    areal-new model --matrix OTHERS.json --json > others.json
    python benchmarks/model_tables.py --listed listed.json [MORE.json ...] --others others.json [MORE.json ...]
    python benchmarks/model_tables.py --update some_others.json     # those types; the rest stays as the document has it

A family that stands in several results of one kind is taken from the last: it was tried again. Every figure is one that
the command printed; nothing is measured or judged here.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Final

from tooling.new.generators.model_matrix import MatrixEntry, MatrixRow, summary, table

DOCUMENT: Final = Path(__file__).parents[1] / "docs/models.md"
PROVEN: Final = Path(__file__).parents[1] / "areal/porting/proven.py"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
KINDS: Final = (
    (r"is an encoder-decoder", "encoder-decoders"),
    (r"is not causal", "not causal as configured by default: later tokens change earlier logits"),
    (r"is a wrapper around", "wrappers around several models, of which the message names the text model"),
    (r"no tiny config|fails in forward", "no small instance builds, or it fails by itself"),
)
"""Refusals before any analysis, by their words; all others begin with the feature that is missing."""


def rows_of(files: list[Path]) -> list[MatrixRow]:
    """Rows of all results in the order of their first appearance, each as it was last."""
    found: dict[str, MatrixRow] = {}
    for file in files:
        for entry in json.loads(file.read_text(encoding="utf-8"))["families"]:
            row = MatrixRow(**{name: value for name, value in entry.items() if name != "total_seconds"})
            found[row.label] = row
    return list(found.values())


def spread(rows: list[MatrixRow]) -> str:
    """Where the seconds of proven families go, and how many configs were compared."""
    proven = [row for row in rows if row.outcome == "proven"]
    parts = []
    for phase in ("analyse", "generate", "test"):
        seconds = sorted(row.seconds[phase] for row in proven)
        parts.append(f"{phase} {statistics.median(seconds):.1f} (up to {seconds[-1]:.0f})")
    equal, refused = (sum(row.verification.get(key, 0) for row in proven) for key in ("equal", "refused"))
    return (
        f"Seconds in the median: {', '.join(parts)}. The verification compared {equal:,} configs that were loaded, all "
        f"equal, and {refused:,} were refused at load."
    )


def others(rows: list[MatrixRow]) -> str:
    """Types that nobody listed: what was proven, line by line, and what was refused, by the reason."""
    proven = [row for row in rows if row.outcome == "proven"]
    lines = ["| model_type | of tolerance | lines | verified |", "|---|---|---|---|"]
    for row in proven:
        checked = f"{row.verification.get('equal', 0)} equal, {row.verification.get('refused', 0)} refused"
        lines.append(f"| `{row.label}` | {row.parity_ratio:.2f} | {row.lines['family']} | {checked} |")
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.outcome != "proven":
            reasons.setdefault(kind_of(row), []).append(f"`{row.label}`")
    lines += ["", "| not generated, because of | types |", "|---|---|"]
    lines += [f"| {reason} | {', '.join(types)} |" for reason, types in sorted(reasons.items(), key=_most_first)]
    counts = summary(rows)
    return "\n".join(
        [*lines, "", ", ".join(f"{counts[name]} {name}" for name in ("proven", "refused", "failed", "wrong", "error"))]
    )


def others_in(text: str) -> list[MatrixRow]:
    """Read back what `others` wrote, as far as it is written again."""
    rows = []
    for label, ratio, lines, equal, refused in re.findall(
        r"^\| `([^`]+)` \| ([\d.]+) \| (\d+) \| (\d+) equal, (\d+) refused \|$", text, re.MULTILINE
    ):
        row = named(label)
        row.parity_ratio, row.lines = float(ratio), {"family": int(lines)}
        row.verification = {"equal": int(equal), "refused": int(refused)}
        rows.append(row)
    for reason, types in re.findall(r"^\| ([^`|]+|[^|]*[^`|]) \| ((?:`[^`]+`(?:, )?)+) \|$", text, re.MULTILINE):
        for label in re.findall(r"`([^`]+)`", types):
            row = named(label)
            row.outcome, row.reason = "refused", reason
            rows.append(row)
    return rows


def named(label: str) -> MatrixRow:
    """Return a row that has this label."""
    model_type, _, name = label.partition(" (")
    return MatrixRow(name=name.rstrip(")") or MatrixEntry(model_type=model_type).name, model_type=model_type)


def kind_of(row: MatrixRow) -> str:
    """Why a type is not there, in a few words."""
    if row.outcome != "refused":
        return f"{row.outcome}: {' '.join(row.reason.split())[:120]}"
    known = next((words for pattern, words in KINDS if re.search(pattern, row.reason)), None)
    return (known or row.reason.split("; ")[0].partition(" at ")[0]).replace("|", "/")


def _most_first(entry: tuple[str, list[str]]) -> tuple[int, str]:
    return -len(entry[1]), entry[0]


def write(text: str, document: Path = DOCUMENT) -> None:
    """Replace what stands between the markers."""
    before, begin, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _old, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{document}: no {BEGIN} ... {END}")
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def write_proven(rows: list[MatrixRow], file: Path = PROVEN) -> None:
    """Replace the list of proven model types, of which `areal-new model` names the nearest to an unknown one."""
    # A type that is listed with several configs has their names behind its own, "falcon (falcon_40b)".
    types = sorted({row.label.split(" ")[0] for row in rows if row.outcome == "proven"})
    head, begin, _ = file.read_text(encoding="utf-8").partition("PROVEN: Final = (\n")
    file.write_text(head + begin + "".join(f'    "{each}",\n' for each in types) + ")\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--listed", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--others", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--update", nargs="+", type=Path, metavar="RESULT.json", help="instead of the two others")
    parser.add_argument("--dry-run", action="store_true", help="print the text instead of writing it")
    given = parser.parse_args(arguments)
    if bool(given.update) == bool(given.listed and given.others):
        parser.error("give --update, or both --listed and --others")
    if given.update:
        before = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
        kept, head, old = before.strip().partition("| model_type | of tolerance |")
        new = {row.label: row for row in rows_of(given.update)}
        rest = [new.pop(row.label, row) for row in others_in(head + old)] + list(new.values())
        first, types = (
            kept.strip(),
            [named(label) for label in re.findall(r"^\| `([^`]+)` \| proven", kept, re.MULTILINE)],
        )
    else:
        types, rest = rows_of(given.listed), rows_of(given.others)
        first = f"{table(types)}\n\n{spread(types)}"
    text = f"{first}\n\n{others(rest)}"
    if given.dry_run:
        sys.stdout.write(text + "\n")
    else:
        write(text)
        write_proven([*types, *rest])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
