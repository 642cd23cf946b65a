"""Valid requests and hypothesis strategies that damage them: bytes, the structure of JSON documents, content types."""

from __future__ import annotations

import base64
import copy
import gzip
import io
import json
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from PIL import Image

from testkit.forms import FORM, form, part

JSON = "application/json"
LONGEST_PAYLOAD = 12


@dataclass(frozen=True, slots=True)
class Sent:
    """A request; ``straight`` if it goes to Triton itself and not to the service."""

    path: str
    body: bytes
    kind: str
    straight: bool = False


def small_picture() -> bytes:
    """A PNG of few bytes, so that most damage to a request is outside the picture."""
    buffer = io.BytesIO()
    Image.new("L", (8, 8), 90).save(buffer, "PNG")
    return buffer.getvalue()


def valid_requests(image_key: str) -> list[Sent]:
    """One or two for each route. Most need no model: the picture is encoded once, and most keys are unknown."""
    picture = part("image", small_picture(), "a.png")
    where = (part("x", b"3"), part("y", b"4"))
    size = (part("img_x", b"8"), part("img_y", b"8"))
    embedding = gzip.compress(base64.b64encode(bytes(4 * 256 * 64 * 64)))
    known = {"image_key": image_key, "points": [[3, 4]], "labels": [1], "format": "rle"}
    unknown = {
        "image_key": "0" * 40,
        "objects": [{"points": [[3, 4], [5, 6]], "labels": [1, 0]}, {"box": [0, 0, 8, 8]}],
        "multimask": True,
        "format": "polygon",
        "session_id": "me",
        "latest_wins": True,
        "model": "sam2",
    }
    image: dict[str, Any] = {
        "image": base64.b64encode(small_picture()).decode(),
        "boxes": [[0, 0, 8, 8]],
        "format": "bits",
    }
    address = {"url": f"data:image/png;base64,{image['image']}"}
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": address}]
    question = {"model": "none", "messages": [{"role": "user", "content": content}], "max_tokens": 5, "stream": True}
    return [
        *(Sent("/v1/segment", json.dumps(document).encode(), JSON) for document in (known, unknown, image)),
        # The picture last: if the boundary after it is damaged, a later field would become part of it, a new encode.
        Sent("/v1/images", form(part("model", b"sam2"), part("session_id", b"me"), picture), FORM),
        Sent("/v1/preview", form(picture), FORM),
        Sent("/prediction", form(*where, part("model_version", b"sam2"), picture), FORM),
        Sent("/embedded_model", form(part("session_id", b"me"), part("cancel_pending", b"true"), picture), FORM),
        Sent("/from_model", form(part("model", embedding, "m"), *where, *size), FORM),
        Sent("/from_model", form(part("model", base64.b64encode(bytes(300)), "m"), *where, *size), FORM),
        Sent("/cancel_pending", b"session_id=me", "application/x-www-form-urlencoded"),
        Sent("/cancel_pending", json.dumps({"session_id": "me"}).encode(), JSON),
        Sent("/v1/chat/completions", json.dumps(question).encode(), JSON),
        *(straight(key, tensor_text(prompt)) for key, prompt in ((image_key, known), ("0" * 40, unknown))),
    ]


def tensor_text(prompt: dict[str, Any]) -> str:
    """A prompt as in the tensor ``prompt_json``: without the fields that are sent separately."""
    own = ("image_key", "session_id", "latest_wins", "model")
    return json.dumps({name: value for name, value in prompt.items() if name not in own})


def straight(key: str, prompt_json: str) -> Sent:
    """A prompt for Triton's own interface (KServe v2)."""
    tensors = {"image_key": key, "prompt_json": prompt_json}
    document = {
        "inputs": [{"name": n, "datatype": "BYTES", "shape": [1], "data": [data]} for n, data in tensors.items()],
        "outputs": [{"name": "result_json"}],
        "parameters": {"session_id": "me", "sequence": 1},
    }
    return Sent("/v2/models/sam2/infer", json.dumps(document).encode(), JSON, straight=True)


# -- damage ------------------------------------------------------------------------------------------------------

Damage = tuple[str, int, int, bytes]

#: (kind of damage, position, number of bytes, payload)
BYTE_DAMAGE: st.SearchStrategy[Damage] = st.tuples(
    st.sampled_from(["flip", "delete", "insert", "duplicate"]),
    st.integers(0, 100_000),
    st.integers(1, 40),
    st.binary(min_size=1, max_size=LONGEST_PAYLOAD),
)


def damage_bytes(body: bytes, damages: list[Damage]) -> bytes:
    for what, where, count, payload in damages:
        at = where % (len(body) + 1)
        before, cut, after = body[:at], body[at : at + count], body[at + count :]
        body = {
            "flip": before + bytes(byte ^ payload[0] for byte in cut[:1]) + cut[1:] + after,
            "delete": before + after,
            "insert": before + payload + cut + after,
            "duplicate": before + cut + cut + after,
        }[what]
    return body


NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1e308, float("nan"), float("inf"), 2**31, 2**63, 2**64, 10**30, -0.0, 1e-320, True]),
    st.integers(-10, 10_000),
    st.floats(),
)
LEAVES = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=20), st.sampled_from(["\0", "\ud800", "é", ""]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["points", "labels", "box", "id", "x" * 300, ""]), inner, max_size=3),
    ),
    max_leaves=8,
)
#: (kind of damage, index of the node, new value)
NODE_DAMAGE = st.tuples(st.sampled_from(["replace", "delete", "wrap", "repeat"]), st.integers(0, 1000), VALUES)


def _nodes(value: Any, spared: frozenset[str]) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside a document, outermost first."""
    found: list[tuple[Any, Any]] = []
    keys: Any = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        if key not in spared:
            found.append((value, key))
            found.extend(_nodes(value[key], spared))
    return found


def damage_structure(document: Any, damages: list[tuple[str, int, Any]], spared: frozenset[str] = frozenset()) -> Any:
    """A damaged copy of a JSON document.

    Args:
        spared: names whose values are left as they are.
    """
    document = copy.deepcopy(document)
    for what, which, value in damages:
        nodes = _nodes(document, spared)
        if not nodes:
            return document
        container, key = nodes[which % len(nodes)]
        if what == "delete":
            del container[key]
        elif what == "wrap":
            container[key] = [container[key]]
        elif what == "repeat" and isinstance(container, list):
            container.extend(container[key : key + 1] * 3)
        else:
            container[key] = value
    return document


KINDS = st.sampled_from([JSON, FORM, "", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "a"])


@st.composite
def mutated(draw: st.DrawFn, valid: list[Sent]) -> Sent:
    """A valid request with one to four damages.

    The shapes of tensors that go straight to Triton are spared, and so are the bytes around them: the embedded release
    crashes on a huge one (which is why Triton is for trusted hosts, with the service in front).
    """
    sent = draw(st.sampled_from(valid))
    is_json = sent.kind == JSON
    if is_json and (sent.straight or draw(st.booleans())):
        document = json.loads(sent.body)
        if sent.straight and draw(st.booleans()):
            prompt = document["inputs"][1]
            text = damage_bytes(prompt["data"][0].encode(), draw(st.lists(BYTE_DAMAGE, min_size=1, max_size=4)))
            prompt["data"] = [text.decode("latin-1")]
        else:
            damages = draw(st.lists(NODE_DAMAGE, min_size=1, max_size=4))
            document = damage_structure(document, damages, frozenset({"shape"} if sent.straight else ()))
        body = json.dumps(document).encode()
    else:
        body = damage_bytes(sent.body, draw(st.lists(BYTE_DAMAGE, min_size=1, max_size=4)))
    kind = draw(KINDS) if draw(st.integers(0, 19)) == 0 else sent.kind
    return replace(sent, body=body, kind=kind)
