"""A worker without a model: ``python fake_worker.py ADDRESS``. Its answers are errors that name its pid.

``python fake_worker.py spare SERVER`` waits on its standard input until it is told which worker it shall be.

What it does with a request is its image key: ``answer`` at once, ``compute`` until it was often asked whether it is
alive, ``keep`` it for ever. It ends with its connection.
"""

from __future__ import annotations

import os
import socket
import sys

from triton_sam.backend.workers.channel import Channel, accept
from triton_sam.backend.workers.result_blocks import ResultBlocks
from triton_sam.backend.workers.spare import Orders
from triton_sam.server.worker_processes import SPARE

#: A request that is computed is answered after so many questions.
QUESTIONS = 150


def serve(channel: Channel) -> None:
    """Takes messages until the other end closes."""
    channel.send({"is": "hello", "info": ["sam2:tiny", "1", "float32"], "on_cpu": True, "starts_slowly": True})
    asked, computing = 0, None
    for message in channel.messages():
        kind, number = message.header["is"], message.header.get("number")
        if kind == "alive":
            asked += 1
            channel.send({"is": "alive"})
            if computing is not None and asked >= QUESTIONS:
                answer(channel, computing)
                computing = None
        elif kind == "work" and message.header["job"]["key"] == "answer":
            answer(channel, number)
        elif kind == "work" and message.header["job"]["key"] == "compute":
            computing = number
        message.release()


def answer(channel: Channel, number: object) -> None:
    channel.send({"is": "error", "number": number, "error": "InvalidInput", "text": f"worker {os.getpid()}"})


def main() -> None:
    if sys.argv[1] == SPARE:
        _, listener, _ = Orders(int(sys.argv[2])).wait()
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{sys.argv[1]}")
        listener.listen()
    with listener:
        connection, _ = listener.accept()
    serve(accept(connection, ResultBlocks().descriptor))


if __name__ == "__main__":
    main()
