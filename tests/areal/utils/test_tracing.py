"""Traces in the trace-event format: valid whenever they are read, slices nest, nothing is recorded unasked."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from traces import check_trace

from areal.utils import tracing

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def stopped():
    yield
    tracing.stop()


def named(events, name, phase=None):
    return [event for event in events if event["name"] == name and phase in (None, event["ph"])]


def test_nothing_is_recorded_until_it_is_asked_for(tmp_path):
    with tracing.span("a"), tracing.async_span("b"):
        tracing.flow_start("sample", "1")
    assert not tracing.active()
    tracing.start(tmp_path / "trace.json")
    tracing.stop()
    assert [event["ph"] for event in check_trace(tmp_path / "trace.json")] == ["M"]


def test_slices_of_threads_nest_and_carry_names_and_arguments(tmp_path):
    tracing.start(tmp_path / "trace.json")
    with tracing.span("outer", step=3), tracing.span("inner"):
        pass

    def other():
        with tracing.span("elsewhere"):
            pass

    thread = threading.Thread(target=other, name="areal-other")
    thread.start()
    thread.join()
    tracing.complete("score", 0, 1, process=(4242, "reward gsm8k"))
    tracing.stop()
    events = check_trace(tmp_path / "trace.json")
    (outer,), (inner,) = named(events, "outer"), named(events, "inner")
    assert outer["args"] == {"step": 3}
    assert outer["ts"] <= inner["ts"] <= inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    assert named(events, "elsewhere")[0]["tid"] != outer["tid"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"trainer", "areal-other", "reward gsm8k"} <= names


def test_slices_across_awaits_share_a_track_only_when_they_nest(tmp_path):
    async def episode(number):
        with tracing.async_span("episode", track=f"train/{number}"):
            with tracing.async_span("generate"):
                await asyncio.sleep(0)

            async def call(index):
                with tracing.async_span(f"tool {index}"):
                    await asyncio.sleep(0)

            await asyncio.gather(call(0), call(1))

    async def main():
        await asyncio.gather(episode(0), episode(1))

    tracing.start(tmp_path / "trace.json")
    asyncio.run(main())
    tracing.stop()
    events = check_trace(tmp_path / "trace.json")
    assert {event["id"] for event in named(events, "generate")} == {"train/0", "train/1"}
    tracks = [event["id"] for event in named(events, "tool 0", "b") + named(events, "tool 1", "b")]
    assert len(set(tracks)) == 4  # two at once cannot be on one track
    assert sum(track in ("train/0", "train/1") for track in tracks) == 2


def test_what_is_open_when_the_recording_begins_or_ends_leaves_no_half_slice(tmp_path):
    before, inside = tracing.async_span("before"), tracing.async_span("inside", track="t")
    before.__enter__()
    tracing.start(tmp_path / "trace.json")
    before.__exit__(None, None, None)
    inside.__enter__()
    tracing.stop()
    inside.__exit__(None, None, None)
    events = check_trace(tmp_path / "trace.json")
    assert not named(events, "before")
    assert named(events, "inside", "e")[0]["args"] == {"cut": "the recording ended first"}


def test_an_exception_is_named(tmp_path):
    tracing.start(tmp_path / "trace.json")
    with pytest.raises(KeyError), tracing.async_span("call"):
        raise KeyError("x")
    tracing.stop()
    assert named(check_trace(tmp_path / "trace.json"), "call", "e")[0]["args"] == {"error": "KeyError"}


def test_arrows_lead_from_slice_to_slice(tmp_path):
    tracing.start(tmp_path / "trace.json")
    tracing.flow_start("sample", "3/0")
    with tracing.span("prepare"):
        tracing.flow_end("sample", "3/0")
    tracing.stop()
    events = check_trace(tmp_path / "trace.json", flows=1)
    assert named(events, "sample", "f")[0]["bp"] == "e"


def test_a_file_is_never_replaced_and_only_one_is_recorded(tmp_path):
    path = tmp_path / "trace.json"
    tracing.start(path)
    with pytest.raises(RuntimeError, match=r"is being recorded; call stop\(\) first"):
        tracing.start(tmp_path / "other.json")
    tracing.stop()
    with pytest.raises(FileExistsError):
        tracing.start(path)
    assert not tracing.active()


def test_a_killed_process_leaves_a_valid_document(tmp_path):
    program = (
        "import sys, threading; from pathlib import Path; from areal.utils import tracing\n"
        "tracing.start(Path(sys.argv[1]))\n"
        "def work():\n"
        "    for i in range(500):\n"
        "        with tracing.span('work', number=i, text='x' * (i % 300)): pass\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "sys.stdout.write('done\\n'); sys.stdout.flush(); threading.Event().wait()"
    )
    path = tmp_path / "trace.json"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    child.kill()
    child.wait()
    child.stdout.close()
    assert 1500 - tracing.BUFFERED < len(named(check_trace(path), "work")) <= 1500
