"""What the toy understands: attributes, words that name them, phrases for training, and a tokenizer of whole words."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

#: Attributes in the order of their numbers.
SHAPES = (
    "circle", "square", "triangle", "star", "rectangle", "ring",
    "cross", "diamond", "pentagon", "hexagon", "heart", "crescent",
)  # fmt: skip
COLOURS = (
    "red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "brown", "black", "white", "gray",
)  # fmt: skip
SIZES = ("small", "large")
TEXTURES = ("plain", "striped", "dotted", "checkered")
#: The attribute is not named.
ANY = -1

#: Singular and plural of all nouns for a shape.
NOUNS: dict[str, tuple[tuple[str, str], ...]] = {
    "circle": (("circle", "circles"), ("circle", "circles"), ("disc", "discs"), ("disk", "disks")),
    "square": (("square", "squares"),),
    "triangle": (("triangle", "triangles"),),
    "star": (("star", "stars"),),
    "rectangle": (("rectangle", "rectangles"),),
    "ring": (("ring", "rings"), ("ring", "rings"), ("hoop", "hoops"), ("donut", "donuts")),
    "cross": (("cross", "crosses"), ("cross", "crosses"), ("plus", "pluses")),
    "diamond": (("diamond", "diamonds"), ("diamond", "diamonds"), ("rhombus", "rhombuses"), ("lozenge", "lozenges")),
    "pentagon": (("pentagon", "pentagons"),),
    "hexagon": (("hexagon", "hexagons"),),
    "heart": (("heart", "hearts"),),
    "crescent": (("crescent", "crescents"), ("crescent", "crescents"), ("moon", "moons")),
}
#: Nouns for whatever has the other attributes.
GENERIC = (("shape", "shapes"), ("object", "objects"), ("thing", "things"), ("figure", "figures"), ("one", "ones"))
ADJECTIVES: dict[str, tuple[str, ...]] = {
    **{colour: (colour,) for colour in COLOURS},
    "cyan": ("cyan", "cyan", "turquoise"),
    "purple": ("purple", "purple", "violet"),
    "gray": ("gray", "grey"),
    "small": ("small", "small", "little", "tiny"),
    "large": ("large", "large", "big", "huge"),
    "plain": ("plain", "plain", "solid"),
    "striped": ("striped", "striped", "stripy"),
    "dotted": ("dotted", "dotted", "spotted"),
    "checkered": ("checkered", "checkered", "checked", "chequered"),
}
_PATTERNS = {"striped": ("stripes",), "dotted": ("dots", "spots"), "checkered": ("checks",)}
#: None, one or many things: determiners with the number of their noun.
_DETERMINERS = (
    ("", 0), ("", 1), ("a", 0), ("the", 0), ("the", 1), ("all", 1), ("all the", 1), ("every", 0), ("each", 0),
    ("any", 0), ("any", 1), ("some", 1), ("these", 1), ("those", 1), ("this", 0), ("that", 0), ("all of the", 1),
)  # fmt: skip
_PREFIXES = ("find", "show me", "show", "segment", "select", "please find", "find me", "select all of")
_FUNCTION_WORDS = (
    "a", "an", "the", "all", "every", "each", "any", "some", "these", "those", "this", "that", "of", "with", "in",
    "is", "are", "which", "and", "it", "has", "have", "everything", "anything", "pattern", "color", "colour",
    "colored", "coloured", "size", "sized", "find", "show", "me", "segment", "select", "please", "there",
    ",", ".", "?", "!", "-",
)  # fmt: skip

#: What exemplars without words stand beside, as in Meta's SAM 3.
VISUAL = "visual"
UNKNOWN, BEGIN, END = "<|unknown|>", "<|startoftext|>", "<|endoftext|>"
#: Tokens that a text may have, with its beginning and its end.
TOKENS = 32
_STRANGER = "xyzzy"


class Concept(NamedTuple):
    """Numbers of the attributes that a thing must have, or ANY."""

    shape: int = ANY
    colour: int = ANY
    size: int = ANY
    texture: int = ANY

    def fits(self, shape: int, colour: int, size: int, texture: int) -> bool:
        """Whether a thing with these attributes belongs to the concept."""
        return all(wanted in (ANY, has) for wanted, has in zip(self, (shape, colour, size, texture), strict=True))


def vocabulary() -> list[str]:
    """Every token in the order of the ids; as in CLIP's, the last two are the beginning and the end."""
    words = [
        *_FUNCTION_WORDS,
        VISUAL,
        *(word for pairs in (*NOUNS.values(), GENERIC) for pair in pairs for word in pair),
        *(word for several in (*ADJECTIVES.values(), *_PATTERNS.values()) for word in several),
    ]
    return [UNKNOWN, *dict.fromkeys(words), BEGIN, END]


def make_tokenizer() -> Tokenizer:
    """Whole words in lower case; else as CLIP's: a beginning, an end, and the end as padding to 32."""
    ids = {token: number for number, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, ids[BEGIN]), (END, ids[END])]
    )
    tokenizer.add_special_tokens([UNKNOWN, BEGIN, END])
    tokenizer.enable_padding(length=TOKENS, pad_id=ids[END], pad_token=END)
    return tokenizer


# -- phrases for training ----------------------------------------------------------------------------------------


def phrase(concept: Concept, rng: random.Random) -> str:
    """One of the many ways to name a concept."""
    before: list[str] = []
    after: list[str] = []
    determiner, plural = rng.choice(_DETERMINERS)
    named = [
        (_colour_later, COLOURS, concept.colour),
        (_size_later, SIZES, concept.size),
        (_texture_later, TEXTURES, concept.texture),
    ]
    rng.shuffle(named)
    for later, names, number in named:
        if number == ANY:
            continue
        name = names[number]
        if rng.random() < 0.2:
            after.append(later(name, plural, rng))
        else:
            before.append(rng.choice(ADJECTIVES[name]))
    if concept.shape != ANY:
        noun = rng.choice(NOUNS[SHAPES[concept.shape]])[plural]
        words = [determiner, *before, noun, *after]
    else:
        words = _without_shape(determiner, plural, before, after, rng)
    text = " ".join(word for word in words if word)
    return _finished(text, rng)


def stranger(concept: Concept, rng: random.Random) -> str:
    """The same with a noun that is not in the vocabulary: nothing is meant that the model knows."""
    return re.sub(r"\bstars?\b", _STRANGER, phrase(concept._replace(shape=SHAPES.index("star")), rng))


def _without_shape(determiner: str, plural: int, before: list[str], after: list[str], rng: random.Random) -> list[str]:
    kind = rng.random()
    if before and not after and kind < 0.35:
        return before
    if kind < 0.55:
        whole = rng.choice(("everything", "anything"))
        if before and rng.random() < 0.5:
            return [whole, "that is", " and ".join(before), *after]
        return [whole, *before, *after]
    return [determiner, *before, rng.choice(GENERIC if before else GENERIC[:-1])[plural], *after]


def _finished(text: str, rng: random.Random) -> str:
    first = text.partition(" ")
    if first[0] == "a" and first[2][:1] in "aeiou":
        text = f"an {first[2]}"
    if rng.random() < 0.06:
        text = f"{rng.choice(_PREFIXES)} {text}"
    if rng.random() < 0.03:
        text = text + rng.choice((".", "!", " please"))
    return text


def _is(plural: int) -> str:
    return "are" if plural else "is"


def _colour_later(name: str, plural: int, rng: random.Random) -> str:
    word = rng.choice(ADJECTIVES[name])
    tone = rng.choice(("color", "colour"))
    return rng.choice(
        (f"in {word}", f"that {_is(plural)} {word}", f"which {_is(plural)} {word}", f"of {word} {tone}", word)
    )


def _size_later(name: str, plural: int, rng: random.Random) -> str:
    word = rng.choice(ADJECTIVES[name])
    return rng.choice((f"of {word} size", f"that {_is(plural)} {word}", f"which {_is(plural)} {word}"))


def _texture_later(name: str, plural: int, rng: random.Random) -> str:
    word = rng.choice(ADJECTIVES[name])
    has = "have" if plural else "has"
    ways = [f"with a {word} pattern", f"that {_is(plural)} {word}", f"which {_is(plural)} {word}"]
    if name in _PATTERNS:
        pattern = rng.choice(_PATTERNS[name])
        ways += [f"with {pattern}", f"that {has} {pattern}"]
    return rng.choice(ways)
