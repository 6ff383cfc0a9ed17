"""Messages of SGLang 0.5.20 as they were recorded, and what the adapter makes of them."""

from __future__ import annotations

import asyncio

import pytest

from areal.engine.server.adapter import Call, Capabilities
from areal.engine.server.errors import BadStatusError, BrokenTokensError
from areal.engine.sglang.adapter import SGLangAdapter

CAPABILITIES = Capabilities(version="0.5.20", keeps_requests=False, details={"seeded": False, "open": set()})


def event(ids, entries, total, finish=None, **meta):
    return {
        "output_ids": ids,
        "meta_info": {"id": "a;", "finish_reason": finish, "prompt_tokens": 3, "weight_version": "4",
                      "num_retractions": 0, "input_token_logprobs": [], "reasoning_tokens": 0, "cached_tokens": 2,
                      "output_token_logprobs": [[-0.5 * token, token, None] for token in entries],
                      "output_token_logprobs_length": len(entries), "completion_tokens": total, **meta},
    }  # fmt: skip


LENGTH = {"type": "length", "length": 5}
VERSIONS = [{"version": "4", "start": 0, "end": 5}]
# All tokens again in each event; and with --incremental-streaming-output, those that are new.
WHOLE = [
    event([9], [9], 1),
    event([9, 8, 7], [9, 8, 7], 3),
    event([9, 8, 7, 6, 5], [9, 8, 7, 6, 5], 5, LENGTH, weight_versions=VERSIONS),
]
PARTS = [event([9], [9], 1), event([8, 7], [8, 7], 3), event([6, 5], [6, 5], 5, LENGTH, weight_versions=VERSIONS)]
# Cut in the queue of a paused server: all log-probabilities again, after parts that wait there, and one token's id.
QUEUED = {"type": "abort", "message": "Abort in waiting queue"}
CUT = [event([9], [9], 1), event([8, 7, 7], [8, 7, 9, 8, 7], 3, QUEUED, weight_versions=VERSIONS[:1])]


class Recorded:
    """In the place of the client: answers from a list, and what was asked for."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def events(self, url, path, body, *, patience):
        self.asked.append((path, body))
        for one in self.answers.pop(0):
            yield one

    async def post(self, url, path, body=None, *, timeout):
        self.asked.append((path, body))
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def stream(client, **changes):
    options = {"call_id": "a", "prompt": [1, 2, 3], "max_tokens": 5, "min_tokens": 0, "stop_token_ids": (1, 2),
               "temperature": 0.7, "top_p": 1.0, "top_k": 0, "seed": 3, "stream_interval": 2}  # fmt: skip

    async def chunks():
        call = Call(**(options | changes))
        found = SGLangAdapter().stream(client, "http://here", call, capabilities=CAPABILITIES, patience=1.0)
        return [chunk async for chunk in found]

    return asyncio.run(chunks())


@pytest.mark.parametrize("recorded", [WHOLE, PARTS], ids=["all tokens in each event", "new tokens only"])
def test_both_ways_of_streaming_give_the_same(recorded):
    chunks = stream(Recorded(recorded))
    assert [chunk.tokens for chunk in chunks] == [[9], [8, 7], [6, 5]]
    assert chunks[1].logprobs == [-4.0, -3.5]
    assert [chunk.finish for chunk in chunks] == ["", "", "length"]
    assert chunks[-1].spans == ((4, 0, 5),)


def test_an_answer_that_was_cut_in_the_queue_keeps_what_it_has():
    chunks = stream(Recorded(CUT))
    assert [chunk.tokens for chunk in chunks] == [[9], [8, 7]]
    assert chunks[-1].finish == "abort"


def test_a_request_ends_by_its_own_stop_tokens():
    client = Recorded(PARTS)
    stream(client)
    sampling = client.asked[0][1]["sampling_params"]
    assert sampling == {"max_new_tokens": 5, "temperature": 0.7, "stop_token_ids": [1, 2]}


def test_a_least_length_is_a_request_without_stop_tokens_and_one_with_them():
    first = [event([9, 8], [9, 8], 2, {"type": "length", "length": 2}, weight_versions=[
        {"version": "4", "start": 0, "end": 2}])]  # fmt: skip
    second = [event([7, 1], [7, 1], 2, {"type": "stop", "matched": 1}, weight_versions=[
        {"version": "5", "start": 0, "end": 2}])]  # fmt: skip
    client = Recorded(first, second)
    chunks = stream(client, min_tokens=2)
    assert [chunk.tokens for chunk in chunks] == [[9, 8], [7, 1]]
    assert [chunk.finish for chunk in chunks] == ["", "stop"]
    # An update may come between the two: each has its version.
    assert chunks[-1].spans == ((4, 0, 2), (5, 2, 4))
    (_, one), (_, other) = client.asked
    assert one["sampling_params"]["logit_bias"] == {"1": -1e9, "2": -1e9}
    assert one["sampling_params"]["max_new_tokens"] == 2
    assert other["input_ids"] == [1, 2, 3, 9, 8]
    assert other["sampling_params"]["max_new_tokens"] == 3


@pytest.mark.parametrize(
    "broken",
    [
        [event([9], [9], 3)],
        [event([9, 8], [9, 7], 2)],
        [event([9], [9], 1, LENGTH, weight_versions=[{"version": "default", "start": 0, "end": 1}])],
    ],
    ids=["too few log-probabilities", "of other tokens", "a version nobody sent"],
)
def test_tokens_that_contradict_their_log_probabilities_are_refused(broken):
    with pytest.raises(BrokenTokensError):
        stream(Recorded(broken))


def test_an_abort_with_a_status_is_an_error_of_the_server():
    timeout = {"type": "abort", "message": "timed out in the queue", "status_code": 503, "err_type": None}
    with pytest.raises(BadStatusError, match="timed out"):
        stream(Recorded([event([], [], 0, timeout)]))


def test_a_pause_waits_for_the_answers_it_cut_and_not_for_those_that_begin_later():
    open_streams, asked = {"one", "two"}, []

    class Server(Recorded):
        async def post(self, url, path, body=None, *, timeout):
            asked.append((path, body.get("mode"), set(open_streams)))
            if path == "/abort_request":
                asyncio.get_running_loop().call_later(0.1, open_streams.difference_update, {"one", "two"})
                asyncio.get_running_loop().call_soon(open_streams.add, "later")

    capabilities = Capabilities(version="0.5.20", keeps_requests=False, details={"seeded": False, "open": open_streams})
    asyncio.run(SGLangAdapter().pause(Server(), "http://here", capabilities=capabilities, timeout=60.0))
    assert [(path, mode) for path, mode, _ in asked] == [
        ("/pause_generation", "retract"), ("/abort_request", None), ("/pause_generation", "abort"),
    ]  # fmt: skip
    assert asked[-1][-1] == {"later"}


@pytest.mark.parametrize("status", [400, 404, 422])
def test_older_servers_are_paused_by_the_one_mode_they_know(status):
    client = Recorded(BadStatusError(status, "/pause_generation", "no such mode"))
    asyncio.run(SGLangAdapter().pause(client, "http://here", capabilities=CAPABILITIES, timeout=60.0))
    assert [body["mode"] for path, body in client.asked if path == "/pause_generation"] == ["retract", "abort"]


def test_a_score_accepts_the_id_that_stands_for_the_last_of_the_vocabulary():
    listed = [[None, 3, None], [-0.25, 5, None], [-1.5, 0, None]]
    client = Recorded({"output_ids": [3], "meta_info": {"input_token_logprobs": listed}})
    scores = asyncio.run(SGLangAdapter().score(client, "http://here", [3, 5, 19], timeout=1.0))
    assert scores == [-0.25, -1.5]
