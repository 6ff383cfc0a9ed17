"""A real server process for tests of the supervisor: answers /health, and misbehaves as its first argument says.

    python small_server.py MODE PORT [FOLDER]

Standard library only, so that it starts quickly. Modes: good, never (does not listen), exit (ends at once), stubborn
(ignores SIGTERM), children (starts a child, and a grandchild in a session of its own; writes their ids to FOLDER).
"""

import http.server
import os
import signal
import subprocess
import sys
import time

SLEEPER = "import time; time.sleep(600)"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["AREAL_SERVER_INCARNATION"].encode())

    def log_message(self, *_):
        pass


def main(mode, port, folder=None):
    sys.stdout.write(f"mode {mode} on port {port}\n")
    sys.stdout.flush()
    if mode == "exit":
        sys.stderr.write("no model at this path\n")
        raise SystemExit(3)
    if mode == "never":
        time.sleep(600)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "children":
        child = subprocess.Popen([sys.executable, "-S", "-c", SLEEPER])
        other = subprocess.Popen([sys.executable, "-S", "-c", SLEEPER], start_new_session=True)
        with open(f"{folder}/pids", "w", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {child.pid} {other.pid}")
    http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


main(*sys.argv[1:])
