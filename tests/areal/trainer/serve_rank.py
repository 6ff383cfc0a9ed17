"""Serve as another rank of a group, in the working folder: `serve_rank.py SOCKET PATIENCE`, as the test says."""

import os
import socket
import sys
from multiprocessing.connection import Connection

from areal.trainer import rank_group

if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    rank_group.ALIKE_SECONDS = float(sys.argv[2])
    link = socket.socket(socket.AF_UNIX)
    link.connect(sys.argv[1])
    raise SystemExit(rank_group.serve(Connection(link.detach())))
