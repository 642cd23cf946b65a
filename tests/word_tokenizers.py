"""Tokenizers of whole words, for small models that read texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from triton_sam.models.specs import TOKENIZER_FILE


def write_word_tokenizer(folder: Path, words: Sequence[str]) -> Path:
    """Each word is a token, by its place; the last two begin and end a text, and the first stands for all others."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    begin, end = words[-2:]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, len(words) - 2), (end, len(words) - 1)]
    )
    file = folder / TOKENIZER_FILE
    tokenizer.save(str(file))
    return file
