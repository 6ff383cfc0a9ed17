"""A program that knows nothing of training but two URLs: its own server opens, closes and scores sessions, and its
agent is an unmodified client of the OpenAI SDK.

    python user_of_sessions.py READY_FILE REPORT_FILE FIRST

Session number N of FIRST, FIRST + 1, ... gets the reward N / 100, but every third one gets none. It ends with the run.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def ask(address, method, path, body=None):
    request = urllib.request.Request(
        f"{address}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['AREAL_ADMIN_KEY']}"},
        method=method,
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def opened(address):
    """Return a session, or None when the run is over."""
    while True:
        try:
            status, session = ask(address, "POST", "/rl/sessions")
        except OSError:
            return None
        if status == 200:
            return session
        assert status == 429, session
        time.sleep(0.05)


def converse(session, question):
    from openai import OpenAI

    client = OpenAI(base_url=session["openai_base_url"], api_key=session["key"], max_retries=0)
    messages = [{"role": "user", "content": question}]
    for _ in range(2):
        answer = client.chat.completions.create(model="any", messages=messages).choices[0].message
        messages += [answer, {"role": "user", "content": "?"}]


def main():
    ready, report, first = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    while not ready.exists():
        time.sleep(0.05)
    address = json.loads(ready.read_text())["address"]
    done = []
    for number in range(first, first + 1000):
        if (session := opened(address)) is None:
            break
        try:
            converse(session, f"{number % 9 + 1}*2=")
            ask(address, "DELETE", f"/rl/sessions/{session['name']}")
            score = None if number % 3 == 2 else number / 100
            if score is not None:
                status, _ = ask(address, "POST", f"/rl/sessions/{session['name']}/reward", {"reward": score})
                score = score if status == 200 else None
        except Exception as error:  # noqa: BLE001 - the run has ended, or has given the session up
            done.append({"number": number, "error": f"{type(error).__name__}: {error}"})
            continue
        done.append({"number": number, "score": score, "row": session["row"]})
    report.write_text(json.dumps(done))


if __name__ == "__main__":
    main()
