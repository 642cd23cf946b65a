"""A worker without a model: ``python fake_worker.py ADDRESS``. Its answers are errors that name its pid.

What it does with a request is its image key: ``answer`` at once, ``compute`` until it was often asked whether it is
alive, ``keep`` it for ever. It ends with its connection.
"""

from __future__ import annotations

import os
import socket
import sys

from triton_sam.backend.workers.channel import Channel, accept
from triton_sam.backend.workers.result_blocks import ResultBlocks

#: A request that is computed is answered after so many questions.
QUESTIONS = 150


def serve(channel: Channel) -> None:
    """Takes messages until the other end closes."""
    channel.send({"is": "hello", "info": ["sam2:tiny", "1", "float32"], "on_cpu": True})
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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{sys.argv[1]}")
        listener.listen()
        connection, _ = listener.accept()
    serve(accept(connection, ResultBlocks().descriptor))


if __name__ == "__main__":
    main()
