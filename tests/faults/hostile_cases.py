"""Hostile request bodies by kind: what is wrong -> the body. All must be refused; the tests have the status of each."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np

from tests.faults.hostile_images import zeros


def prompts(key: str) -> dict[str, str]:
    """JSON for /v1/segment and for the socket."""
    good = {"image_key": key, "points": [[365, 290]]}

    def changed(**fields: Any) -> str:
        return json.dumps(good | fields)

    def raw(field: str, text: str) -> str:
        return f'{{"image_key": "{key}", "points": [[365, 290]], "{field}": {text}}}'

    nan_mask = base64.b64encode(np.full((256, 256), np.nan, "<f4").tobytes()).decode()
    return {
        "a point at 1e308": changed(points=[[1e308, 1e308]]),
        "a point at 2^63": changed(points=[[2**63, -(2**63)]]),
        "a point of 4,000 digits": raw("points", "[[" + "9" * 4000 + ", 1]]"),
        "a point of 100,000 digits": raw("points", "[[" + "9" * 100_000 + ", 1]]"),
        "a point at 1e999": raw("points", "[[1e999, 1]]"),
        "NaN": raw("points", "[[NaN, 1]]"),
        "Infinity": raw("points", "[[Infinity, -Infinity]]"),
        "NaN in a box": raw("box", "[NaN, 0, 10, 10]"),
        "a box of huge numbers": changed(points=[], box=[-1e300, -1e300, 1e300, 1e300]),
        "a mask of NaN": changed(mask_input=nan_mask),
        "a mask of infinities": raw("mask_input", "[[" + ", ".join(["Infinity"] * 256) + "]]"),
        "a mask of 300 x 300": changed(mask_input=[[0.0] * 300] * 300),
        "a mask of 1 x 100,000": changed(mask_input=[[0.0] * 100_000]),
        "a mask of 600 kB": changed(mask_input=base64.b64encode(bytes(450_000)).decode()),
        "a mask whose rows differ": changed(mask_input=[[0.0] * 256] * 255 + [[0.0]]),
        "an image size": changed(image_size=[10**9, 10**9]),
        "100,000 points": changed(points=[[1, 1]] * 30_000, labels=[1] * 30_000),
        "10,000 objects": changed(points=[], objects=[{"points": [[1, 1]]}] * 10_000),
        "labels of 2^70": changed(labels=[2**70]),
        "a format of 100 kB": changed(format="x" * 100_000),
        "a key of 100 kB": changed(image_key="a" * 100_000),
        "a key with a NUL": changed(image_key="a" * 39 + "\0"),
        "a model with a NUL": changed(model="sam2\0"),
        "a model that climbs": changed(model="../../sam2"),
        "a field with a NUL": changed(**{"points\0": [[1, 1]]}),
        "a field of half a character": f'{{"image_key": "{key}", "points": [[1, 1]], "\\ud800": 1}}',
        "a key of half a character": f'{{"image_key": "\\ud800{key[1:]}", "points": [[1, 1]]}}',
        "a key twice": f'{{"image_key": "{"0" * 40}", "image_key": "{key}", "points": [[365, 290]]}}',
        "points twice": f'{{"image_key": "{key}", "points": [[1, 1]], "points": [[365, 290]]}}',
        "a field twice inside": f'{{"image_key": "{key}", "objects": [{{"box": [0,0,9,9], "box": [1,1,9,9]}}]}}',
        "100,000 brackets": "[" * 100_000,
        "100,000 brackets, closed": raw("points", "[" * 100_000 + "]" * 100_000),
        "90,000 braces": '{"a":' * 90_000 + "1" + "}" * 90_000,
        "deep points": raw("points", "[" * 400 + "1" + "]" * 400),
        "a list": "[1, 2]",
        "a number": "17",
        "nothing": "",
        "half a document": changed()[:-5],
        "two documents": changed() + changed(),
        "a comment": changed() + "// mine",
    }


def segment_bodies(key: str) -> dict[str, bytes]:
    """For /v1/segment only: bodies that are no valid text for a socket, or too large for one."""
    good = json.dumps({"image_key": key, "points": [[365, 290]]}).encode()
    return {
        "bad UTF-8": good.replace(b"points", b"p\xc3\x28ints"),
        "bad UTF-8 in a key": good.replace(key.encode(), b"\xff\xfe" * 20),
        "UTF-16 cut in half": good.decode().encode("utf-16")[:-1],
        "a NUL byte": good + b"\0",
        "NULs": bytes(1_000_000),
        "half a million brackets": b'{"points": [' + b"[]," * 500_000 + b"[]]}",
        "a session with a NUL": good[:-1] + b', "session_id": "a\\u0000b"}',
        "a session of 10 kB": good[:-1] + b', "session_id": "' + b"s" * 10_000 + b'"}',
        "a mask of 20 MB": good[:-1] + b', "mask_input": "' + base64.b64encode(bytes(20_000_000)) + b'"}',
        "gzip": gzip.compress(good),
        "a gzip bomb": gzip_bomb(),
    }


def gzip_bomb() -> bytes:
    """1 GB of zeros in 4 MB."""
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + zeros(1_000_000_000)[2:-4] + bytes(8)  # zlib's stream in gzip's frame


def small_embeddings(embedding: bytes) -> dict[str, bytes]:
    """For /from_model instead of ``embedding``, the response of /embedded_model."""
    nan = base64.b64encode(np.full((1, 256, 64, 64), np.nan, "<f4").tobytes())
    return {
        "a gzip's signature": b"\x1f\x8b",
        "NaN": nan,
        "one number less": embedding[:-8],
        "no base64": b"\xff" * len(embedding),
        "NULs": bytes(1000),
        "nothing": b"",
    }


def embeddings(embedding: bytes) -> dict[str, bytes]:
    """The same, and large ones."""
    return small_embeddings(embedding) | {
        "a gzip bomb": gzip_bomb(),
        "a bomb inside a gzip": gzip.compress(gzip_bomb()),
        "half a gzip": gzip.compress(embedding[:1_000_000], 1)[:500_000],
        "40 MB": b"A" * 40_000_000,
    }
