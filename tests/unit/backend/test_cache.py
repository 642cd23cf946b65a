from __future__ import annotations

import numpy as np
import pytest

from triton_sam.backend.cache import EmbeddingCache, content_key
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.base import Embedding, HostEmbedding
from triton_sam.errors import ImageExpired


def embedding(floats: int = 25) -> Embedding:
    return HostEmbedding(Frame(4, 4, 4, ResizePolicy.SQUASH), {"features": np.zeros(floats, np.float32)})


def test_least_recently_used_goes_first_and_bytes_stay_bounded() -> None:
    cache = EmbeddingCache(300)
    for key in "abc":
        cache.put(key, embedding())
    assert cache.get("a") is not None
    cache.put("d", embedding())
    assert [key for key in "abcd" if cache.get(key) is not None] == ["a", "c", "d"]
    assert cache.bytes == 300
    cache.put("e", embedding(50))
    assert cache.bytes <= 300


def test_putting_twice_counts_once() -> None:
    cache = EmbeddingCache(300)
    cache.put("a", embedding())
    cache.put("a", embedding())
    assert (cache.bytes, len(cache)) == (100, 1)


def test_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = EmbeddingCache(300)
    cache.put("a", embedding())
    cache.put("huge", embedding(1000))
    assert cache.get("huge") is None
    assert cache.get("a") is not None


def test_unknown_key_is_expired() -> None:
    with pytest.raises(ImageExpired, match="send the image again"):
        EmbeddingCache(300).require("nobody")


def test_an_alias_lives_as_long_as_its_image() -> None:
    cache = EmbeddingCache(200)
    first = embedding()
    cache.put("a", first)
    cache.add_alias("hash of a", "a")
    cache.add_alias("hash of nothing", "never stored")
    assert cache.find_alias("hash of a") == ("a", first)
    assert cache.find_alias("hash of nothing") is None
    cache.put("b", embedding())
    cache.put("c", embedding())
    assert cache.find_alias("hash of a") is None


def test_a_key_belongs_to_content_model_version_and_encoder() -> None:
    one = ("sam2:tiny", "1", "float32", b"picture")
    assert content_key(*one) == content_key(*one)
    asked = [one, ("sam2:tiny", "1", "float32", b"other"), ("x", "1", "float32", b"picture")]
    asked += [("sam2:tiny", "2", "float32", b"picture"), ("sam2:tiny", "11", "float32", b"picture")]
    asked += [("sam2:tiny", "1", "8-bit", b"picture"), ("sam2:tiny", "1", "float32", b"1picture")]
    keys = {content_key(*each) for each in asked}
    assert len(keys) == len(asked)
