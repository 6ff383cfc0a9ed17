"""Check a file against the trace-event format, as strictly as its readers and a little more."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PHASES = {"X", "b", "e", "s", "f", "M"}


def check_trace(path: Path, *, flows: int | None = None) -> list[dict[str, Any]]:
    """Return the events, all of them well formed, nested, and named; flows: how many arrows must be whole."""
    events = json.loads(path.read_text())
    assert isinstance(events, list)
    for event in events:
        assert event["ph"] in PHASES
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], int | float)
        assert event["ts"] >= 0
    _check_names(events)
    _check_threads([event for event in events if event["ph"] == "X"])
    _check_tracks([event for event in events if event["ph"] in "be"])
    starts = {(event["name"], event["id"]): event for event in events if event["ph"] == "s"}
    ends = [event for event in events if event["ph"] == "f"]
    whole = [event for event in ends if (event["name"], event["id"]) in starts]
    for event in whole:
        assert starts[event["name"], event["id"]]["ts"] <= event["ts"]
    for event in [*starts.values(), *ends]:
        assert any(_covers(item, event) for item in events if item["ph"] == "X"), f"no slice around {event}"
    if flows is not None:
        assert len(whole) == flows
    return events


def _check_names(events: list[dict[str, Any]]) -> None:
    """Every process and every thread with slices has a name."""
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"} <= named
    assert {event["name"] for event in events if event["ph"] == "M"} <= {"process_name", "thread_name"}


def _check_threads(events: list[dict[str, Any]]) -> None:
    """Slices of a thread are inside each other or apart."""
    threads = defaultdict(list)
    for event in events:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append((*_span(event), event["name"]))
    for slices in threads.values():
        open_until: list[tuple[int, str]] = []
        for begin, end, name in sorted(slices, key=lambda item: (item[0], -item[1])):
            while open_until and open_until[-1][0] <= begin:
                open_until.pop()
            if open_until:
                assert end <= open_until[-1][0], f"{name} ends after {open_until[-1][1]} around it"
            open_until.append((end, name))


def _check_tracks(events: list[dict[str, Any]]) -> None:
    """On a track, what began last ends first; what is still open at the end of the file is allowed."""
    tracks = defaultdict(list)
    for event in sorted(events, key=lambda item: item["ts"]):
        opened = tracks[event["cat"], event["id"]]
        if event["ph"] == "b":
            opened.append(event["name"])
        else:
            assert opened, f"{event['name']} ends and never began"
            assert opened.pop() == event["name"]


def _covers(item: dict[str, Any], event: dict[str, Any]) -> bool:
    same = (item["pid"], item["tid"]) == (event["pid"], event["tid"])
    begin, end = _span(item)
    return same and begin <= round(event["ts"] * 1000) <= end


def _span(event: dict[str, Any]) -> tuple[int, int]:
    """Nanoseconds, which is what was measured: sums of microseconds are rounded."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)
