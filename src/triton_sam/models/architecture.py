"""The dimensions of networks, by which they are built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Backbone(str, Enum):
    """The kind of image encoder."""

    VIT = "vit"
    TINY_VIT = "tiny_vit"
    HIERA = "hiera"
    PERCEPTION = "perception"


@dataclass(frozen=True, slots=True)
class ConceptArchitecture:
    """The dimensions of what finds concepts: a text encoder and a detector.

    Attributes:
        words: entries of the text encoder's table.
        text_width, text_layers, text_heads, text_hidden: of the text encoder; the last in its feed-forward layers.
        tokens: positions of a text.
        end_token: the token that ends a text, by which the text encoder finds its end.
        geometry_layers: of the transformer that reads exemplars; its other sizes are those of the detector's.
        encoder_layers, decoder_layers, heads, hidden: of the detector's transformer, which is as wide as the neck.
        queries: instances that it can tell apart.
    """

    words: int = 49408
    text_width: int = 1024
    text_layers: int = 24
    text_heads: int = 16
    text_hidden: int = 4096
    tokens: int = 32
    end_token: int = 49407
    geometry_layers: int = 3
    encoder_layers: int = 6
    decoder_layers: int = 6
    heads: int = 8
    hidden: int = 2048
    queries: int = 200


@dataclass(frozen=True, slots=True)
class Architecture:
    """The dimensions of one variant's network.

    Attributes:
        width: channels of the first stage.
        depths: blocks of each stage (one stage if the backbone has no stages).
        heads: attention heads of the first stage.
        global_blocks: blocks that attend to the whole image.
        windows: window side of each stage.
        background: side of the background positional embedding (hiera).
        generation: of models that were trained for video, by which their memory is known; it distinguishes SAM 2.1
            from SAM 2, whose image networks have the same architecture.
        neck: channels of the embedding, of the mask decoder and of the detector.
        concepts: of a network that finds what words and examples name; else None.
    """

    backbone: Backbone
    width: int
    depths: tuple[int, ...]
    heads: int
    global_blocks: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    background: int = 0
    generation: str = ""
    neck: int = 256
    concepts: ConceptArchitecture | None = None
