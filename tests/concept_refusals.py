"""What no server looks for: prompts of words and examples that are refused, and the sentences that say so.

For images of 320 x 240 pixels, models of :data:`tests.analytic_concept_graphs.TRAITS` and the usual limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BOX = [90, 130, 150, 170]
NAN = float("nan")
_EMPTY = 'text is empty: name what to look for, for example "yellow bus"'
_CONTROL = "text has control characters or ones that are not assigned: send plain words"
_LONG = "text has 10,000 characters and 400 are allowed: use a few words"
_MANY = "17 concepts are too many: 16 are allowed"
_TWICE = "cannot be combined with text or exemplars: send them in two requests, with one image_key"
_OUTSIDE = "reaches outside the image of 320 x 240 pixels: clip it"
_RANGE = "Invalid value for '--score-threshold'"
_TWO = "--point and --box cannot be combined with --text or --exemplar: give two commands"


@dataclass(frozen=True)
class Refusal:
    """A prompt, and the whole sentence of the server.

    Attributes:
        python: what the Python clients say, if it is another sentence.
        shell: what the command line says, if it is another one; None if it cannot ask this.
    """

    prompt: Mapping[str, Any]
    sentence: str
    python: str = ""
    shell: str | None = ""


def _beside(name: str, value: Any, shell: str | None, wish: Mapping[str, Any] | None = None) -> Refusal:
    python = f"{name} cannot be combined with text or exemplars: call segment twice, the image is sent once"
    return Refusal({"text": "red", **(wish or {}), name: value}, f"{name} {_TWICE}", python, shell)


REFUSALS = (
    Refusal({"text": ""}, _EMPTY),
    Refusal({"text": " \t\n "}, _EMPTY),
    Refusal({"text": ["red", " "]}, _EMPTY.replace("text", "text of concept 1")),
    Refusal({"text": "\N{BUS}\N{BUS}"}, "text '\N{BUS}\N{BUS}' has no letter or digit: name what to look for in words"),
    Refusal({"text": "\u200b"}, "text '\\u200b' has no letter or digit: name what to look for in words"),
    Refusal({"text": "a" * 10_000}, _LONG),
    Refusal({"text": "a b " * 2_500}, _LONG),
    Refusal({"text": "red\x00bus"}, _CONTROL),
    Refusal({"text": "red\x1b[31m"}, _CONTROL),
    Refusal({"text": "red\ud800"}, _CONTROL),
    Refusal(
        {"text": "red blue " * 10},
        "text 'red blue red blue red blue red blue red blue red blue re... has 22 tokens, start and end "
        "included, and 12 are the most: use fewer words",
    ),
    Refusal({"text": 7}, "text is a string or a list of strings, not a number", shell=None),
    Refusal({"text": ["red", None]}, "concept 1 is empty: give a text or exemplars", shell=None),
    Refusal({"text": ["red"] * 17}, _MANY),
    Refusal({"concepts": [{"text": "red"}] * 17}, _MANY, shell=None),
    Refusal({"exemplars": [[1, 1, 9999, 5]]}, f"exemplar 0 (1, 1, 9999, 5) {_OUTSIDE}"),
    Refusal({"text": "red", "exemplars": [BOX, [-1, 1, 5, 5]]}, f"exemplar 1 (-1, 1, 5, 5) {_OUTSIDE}"),
    Refusal(
        {"concepts": [{"text": "red"}, {"exemplars": [[1, 1, 9999, 5]]}]},
        f"exemplar 0 of concept 1 (1, 1, 9999, 5) {_OUTSIDE}",
        shell=None,
    ),
    Refusal(
        {"exemplars": [[1, 1, 5]]},
        "exemplar 0 needs 4 numbers, not [1, 1, 5]",
        shell="'1,1,5' is not a --exemplar x0,y0,x1,y1[,0]",
    ),
    Refusal(
        {"exemplars": [[5, 5, 1, 1]]},
        "exemplar 0 (5, 5, 1, 1) is inverted or empty: give x0, y0, x1, y1 with x0 < x1 and y0 < y1",
    ),
    Refusal(
        {"exemplars": [[NAN, 1.5, 5.5, 5.5]]},
        "exemplar 0 [nan, 1.5, 5.5, 5.5] has a value that is not a finite number",
    ),
    Refusal(
        {"exemplars": [BOX], "exemplar_labels": [0]},
        "negative exemplars alone name nothing: add an exemplar with label 1, or a text to take them from",
    ),
    Refusal(
        {"exemplars": [BOX], "exemplar_labels": [2]},
        "exemplar_label 0 is 1 (foreground) or 0 (background), not 2",
        shell="'90,130,150,170,2' is not a --exemplar x0,y0,x1,y1[,0]: its last number is 1 (like this) or 0 "
        "(not this)",
    ),
    Refusal(
        {"exemplars": [BOX], "exemplar_labels": [1, 1]},
        "1 exemplars have 2 labels: give one label for each exemplar",
        shell=None,
    ),
    Refusal(
        {"text": ["red", "blue"], "exemplars": [BOX]},
        "several texts with exemplars are ambiguous: use concepts, with exemplars in each",
    ),
    _beside("points", [[1, 1]], _TWO),
    _beside("box", [1, 1, 5, 5], _TWO, {"exemplars": [BOX]}),
    _beside("objects", [{"points": [[1, 1]]}], None),
    Refusal({"text": "red", "score_threshold": 2}, "score_threshold is a number from 0 to 1, not 2", shell=_RANGE),
    Refusal(
        {"text": "red", "score_threshold": -0.1}, "score_threshold is a number from 0 to 1, not -0.1", shell=_RANGE
    ),
    Refusal({"text": "red", "score_threshold": NAN}, "score_threshold is a number from 0 to 1, not nan", shell=_RANGE),
    Refusal(
        {"score_threshold": 0.4},
        "score_threshold needs a concept: add text or exemplars",
        shell="--score-threshold and --max-instances are for words: add --text or --exemplar",
    ),
    Refusal({"text": "red", "max_instances": 10**9}, "max_instances is a whole number from 1 to 200, not 1000000000"),
    Refusal(
        {"concepts": [{"text": "red", "points": [[1, 1]]}]},
        "concept 0 has the unknown key 'points': known are exemplar_labels, exemplars, text",
        shell=None,
    ),
    Refusal(
        {"concepts": [{"text": "red"}], "text": "blue"},
        "text cannot be combined with concepts: move it into one of them",
        shell=None,
    ),
)
