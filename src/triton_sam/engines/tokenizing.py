"""Turns texts into tokens, with the tokenizer file of a checkpoint."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triton_sam.core.json_values import short
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.installation import install_extra

Tokens = npt.NDArray[np.int64]


class TextTokenizer:
    """A tokenizer that pads as CLIP's does. Its methods may be called on any thread."""

    def __init__(self, file: Path, most: int) -> None:
        """
        Args:
            most: tokens of a text, start and end included.
        """
        if importlib.util.find_spec("tokenizers") is None:
            raise SetupError(f"texts need the package tokenizers: {install_extra('server')}")
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises nothing narrower
            raise SetupError(
                f"{file.name} does not load: run `triton-sam setup` for the model again ({error})"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._most = most

    def encode(self, text: str) -> tuple[Tokens, Tokens]:
        """[most] ids, filled up with the token that ends a text, and [most] 1 where one counts.

        Raises:
            InvalidInput: the text has too many tokens.
        """
        found = self._tokenizer.encode(text).ids
        if len(found) > self._most:
            raise InvalidInput(
                f"text {short(text)} has {len(found)} tokens, start and end included, and {self._most} are the most: "
                "use fewer words"
            )
        ids = np.full(self._most, found[-1], np.int64)
        ids[: len(found)] = found
        return ids, (np.arange(self._most) < len(found)).astype(np.int64)
