"""The analytic model (:mod:`tests.analytic`) with concepts: :mod:`tests.analytic_concepts` as ONNX graphs of some kB.

The text encoder looks up the colours of words. The detector finds them in the colours of the picture. Where a picture's
corner is blue (:func:`tests.analytic.slowed`), each run of the detector takes :data:`SLOW_CONCEPT` seconds longer.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests import analytic_concepts as colours
from tests.analytic import CELLS, GraphBuilder, analytic_spec, encoder_graph, graph_model, tensor_info, write_graphs
from tests.word_tokenizers import write_word_tokenizer
from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.models.concept_traits import traits_to_json
from triton_sam.models.specs import CONCEPTS_FILE, DETECTOR_FILE, ENCODER_FILE, TEXT_ENCODER_FILE, TOKENIZER_FILE
from triton_sam.repository.segmenters import write_models

#: Processor time of a run of the detector on a slow picture, in seconds on any machine.
SLOW_CONCEPT = 0.2
_FEATURES = "backbone_features"
_WORDS = ("[UNK]", *colours.COLOURS, "visual", "<s>", "</s>")
TRAITS = ConceptTraits(
    features=_FEATURES,
    channels=4,
    side=CELLS,
    tokens=12,
    text_width=4,
    queries=colours.QUERIES,
    mask_side=CELLS,
)


def write_analytic_concepts(repository: Path, folder: Path, *, name: str = "sam2") -> Path:
    """Writes the model to a repository and returns it; the graphs go to ``folder``."""
    encoder, decoder = write_graphs(folder)
    models = {ENCODER_FILE: encoder_graph(_FEATURES), TEXT_ENCODER_FILE: _text_encoder(), DETECTOR_FILE: _detector()}
    for file, model in models.items():
        onnx.checker.check_model(model)
        (folder / file).write_bytes(model.SerializeToString(deterministic=True))
    write_word_tokenizer(folder, _WORDS)
    (folder / CONCEPTS_FILE).write_text(traits_to_json(TRAITS))
    names = (TEXT_ENCODER_FILE, DETECTOR_FILE, TOKENIZER_FILE, CONCEPTS_FILE)
    spec = analytic_spec()
    spec = dataclasses.replace(spec, concepts=TRAITS, prompts=spec.prompts | {"text"})
    write_models(spec, encoder, decoder, repository, name=name, extras={file: folder / file for file in names})
    return repository


def _integers(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def _text_encoder() -> Any:
    """Red, green and blue of each word, and 1 if it names a colour."""
    build = GraphBuilder()
    table = np.zeros((len(_WORDS), TRAITS.text_width))
    for word, colour in colours.COLOURS.items():
        table[_WORDS.index(word)] = (*colour, 1)
    known = build("Gather", build.constant(table), "input_ids", axis=0)
    mask = build("Unsqueeze", build("Cast", "attention_mask", to=TensorProto.FLOAT), build.whole(2))
    build("Mul", known, mask, gives="text_features")
    inputs = [_integers("input_ids", "N", TRAITS.tokens), _integers("attention_mask", "N", TRAITS.tokens)]
    outputs = [tensor_info("text_features", "N", TRAITS.tokens, TRAITS.text_width)]
    return graph_model(build, "analytic_text_encoder", inputs, outputs, [])


def _detector() -> Any:
    build = GraphBuilder()
    zero, one = build.constant(0.0), build.constant(1.0)
    channels = build("Slice", _FEATURES, build.whole(0), build.whole(3), build.whole(1))
    flat = build("Reshape", channels, build.whole(3, CELLS * CELLS))
    words = build("Slice", "text_features", build.whole(0), build.whole(3), build.whole(2))
    named = build("Slice", "text_features", build.whole(3), build.whole(4), build.whole(2))
    named = build("Mul", named, build("Unsqueeze", build("Cast", "text_mask", to=TensorProto.FLOAT), build.whole(2)))
    # One more box with the label of padding: an empty list cannot be reduced.
    boxes = build("Pad", "boxes", build.whole(0, 0, 0, 0, 1, 0), zero)
    labels = build("Pad", "box_labels", build.whole(0, 0, 0, 1), build.constant(-10, np.int64))
    labels = build("Unsqueeze", labels, build.whole(2))
    likeness = _likeness(build, flat, build("Concat", words, _under(build, flat, boxes), axis=1))
    limit, least = build.constant(colours.LIMIT), build.constant(-colours.LIMIT)

    def labelled(label: int, of_words: str) -> str:
        """[B,T+E,1] bool."""
        of_boxes = build("Cast", build("Equal", labels, build.constant(label, np.int64)), to=TensorProto.FLOAT)
        return build("Greater", build("Concat", of_words, of_boxes, axis=1), build.constant(0.5))

    wanted = build("Where", labelled(1, named), likeness, least)
    unwanted = build("Where", labelled(0, build("Mul", named, zero)), build("Neg", likeness), limit)
    field = build(
        "Min",
        build("ReduceMax", wanted, axes=[1], keepdims=0),
        build("ReduceMin", unwanted, axes=[1], keepdims=0),
    )
    field = build("Reshape", build("Clip", field, least, limit), build.whole(-1, 1, CELLS, CELLS))
    inside = build("Cast", build("Greater", field, zero), to=TensorProto.FLOAT)
    tile = CELLS // colours.TILES
    tiled = build("Reshape", inside, build.whole(-1, colours.TILES, tile, colours.TILES, tile))
    shares = build("Reshape", build("ReduceMean", tiled, axes=[2, 4], keepdims=0), build.whole(-1, colours.QUERIES))
    above = build("Sub", shares, build.constant(colours.SHARE))
    build("Mul", above, build.constant(colours.PER_SHARE), gives="pred_logits")
    whole = build("Reshape", build("ReduceMean", inside, axes=[2, 3], keepdims=0), build.whole(-1, 1))
    presence = build("Mul", build("Sub", whole, build.constant(colours.PRESENT)), build.constant(colours.PER_PRESENT))
    most = build.constant(colours.MOST_PRESENT)
    build.slow(channels, SLOW_CONCEPT, build("Clip", presence, build("Neg", most), most), to="presence_logits")
    tile_of = np.arange(CELLS) // tile
    rows, columns = np.divmod(np.arange(colours.QUERIES), colours.TILES)
    own_rows = (tile_of[None, :, None] == rows[:, None, None])[None].astype(np.float32)  # [1,Q,g,1]
    own_columns = (tile_of[None, None, :] == columns[:, None, None])[None].astype(np.float32)
    own = build("Mul", build.constant(own_rows), build.constant(own_columns))
    build("Where", build("Greater", own, zero), field, least, gives="pred_masks")
    _boxes(build, build("Mul", inside, own), one, zero)
    inputs = [
        tensor_info(_FEATURES, 1, 4, CELLS, CELLS),
        tensor_info("text_features", "B", TRAITS.tokens, TRAITS.text_width),
        _integers("text_mask", "B", TRAITS.tokens),
        tensor_info("boxes", "B", "E", 4),
        _integers("box_labels", "B", "E"),
    ]
    outputs = [
        tensor_info("pred_logits", "B", colours.QUERIES),
        tensor_info("presence_logits", "B", 1),
        tensor_info("pred_boxes", "B", colours.QUERIES, 4),
        tensor_info("pred_masks", "B", colours.QUERIES, CELLS, CELLS),
    ]
    return graph_model(build, "analytic_detector", inputs, outputs, [])


def _under(build: GraphBuilder, flat: str, boxes: str) -> str:
    """[B,E,3]: the colours in the middle of boxes."""

    def cell(axis: int) -> str:
        middle = build("Gather", boxes, build.constant(axis, np.int64), axis=2)
        index = build("Cast", build("Floor", build("Mul", middle, build.constant(float(CELLS)))), to=TensorProto.INT64)
        return build("Max", build("Min", index, build.constant(CELLS - 1, np.int64)), build.constant(0, np.int64))

    index = build("Add", build("Mul", cell(1), build.constant(CELLS, np.int64)), cell(0))
    return build("Transpose", build("Gather", flat, index, axis=1), perm=[1, 2, 0])


def _likeness(build: GraphBuilder, flat: str, wanted: str) -> str:
    """[B,S,g*g]: how similar each cell's colour is to each of S colours [B,S,3], as logits."""
    products = build("Mul", build("MatMul", wanted, flat), build.constant(-2.0))
    own = build("ReduceSum", build("Mul", flat, flat), build.whole(0), keepdims=1)
    other = build("ReduceSum", build("Mul", wanted, wanted), build.whole(2), keepdims=1)
    squares = build("Max", build("Add", build("Add", products, own), other), build.constant(0.0))
    away = build("Sub", build.constant(colours.LIKENESS), build("Sqrt", squares))
    return build("Mul", away, build.constant(colours.PER_COLOUR))


def _boxes(build: GraphBuilder, own: str, one: str, zero: str) -> None:
    """Boxes around what is above 0 in [B,Q,g,g]; zeros around nothing."""
    last = build.constant(float(CELLS))
    numbers = build.constant(np.arange(CELLS).reshape(1, 1, CELLS))
    sides = []
    for axis in (3, 2):  # of columns, then of rows
        other = 5 - axis
        taken = build("Greater", build("ReduceMax", own, axes=[other], keepdims=0), zero)
        sides.append(build("ReduceMin", build("Where", taken, numbers, last), axes=[2], keepdims=1))
        sides.append(build("ReduceMax", build("Where", taken, build("Add", numbers, one), zero), axes=[2], keepdims=1))
    x0, x1, y0, y1 = sides
    found = build("Greater", x1, zero)
    corners = build("Div", build("Concat", x0, y0, x1, y1, axis=2), last)
    build("Where", found, corners, zero, gives="pred_boxes")
