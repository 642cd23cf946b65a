"""Hundreds of tests make an application each: what FastAPI derives from the same types is derived once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter


@pytest.fixture(scope="session", autouse=True)
def type_adapters_once() -> Iterator[None]:
    """Four fifths of the time of a short test are schemas of routes that it does not ask."""
    try:
        from fastapi._compat import v2
    except ImportError:  # another FastAPI: the tests are slower
        yield
        return
    known: dict[Any, TypeAdapter[Any]] = {}

    def adapter(annotated: Any, *, config: Any = None) -> TypeAdapter[Any]:
        kind, *fields = get_args(annotated)
        key = (id(kind), repr(kind), repr(fields), repr(config))
        if key not in known:
            known[key] = TypeAdapter(annotated, config=config)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v2, "TypeAdapter", adapter)
        yield
