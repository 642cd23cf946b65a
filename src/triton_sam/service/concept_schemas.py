"""Schemas of words and examples in requests and responses; :mod:`triton_sam.core.concepts.request` validates."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Box = tuple[float, float, float, float]
_TEXT = "finds all instances of what it names: `yellow bus`; a list looks for each text separately"


class ConceptRequest(BaseModel):
    """What names one concept: a text, exemplars, or both."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"text": "coin", "exemplars": [[21, 40, 66, 83]]}]}
    )

    text: str | None = Field(default=None, max_length=400, description="a few words")
    exemplars: list[Box] | None = Field(
        default=None, description="boxes around examples: x0, y0, x1, y1 in original pixels"
    )
    exemplar_labels: list[Literal[0, 1]] | None = Field(
        default=None, description="for each exemplar: 1 this and all like it, 0 not this; default all 1"
    )


class ConceptFields(BaseModel):
    """Of a request: words and examples, for models whose `prompts` have `text`; no clicks beside them."""

    text: str | list[str] | None = Field(default=None, description=_TEXT)
    exemplars: list[Box] | None = Field(default=None, description="as in concepts; with one text, or without any")
    exemplar_labels: list[Literal[0, 1]] | None = Field(default=None, description="as in concepts")
    concepts: list[ConceptRequest] | None = Field(default=None, description="several, with exemplars of their own")
    score_threshold: float | None = Field(
        default=None, ge=0, le=1, description="instances with a higher score are found; default 0.5"
    )
    max_instances: int | None = Field(
        default=None, ge=1, description="of each concept, those with the highest scores; default: as many as allowed"
    )


class FoundConcept(BaseModel):
    """What was found of one concept."""

    text: str | None = Field(description="null if only exemplars say what it is")
    presence: float = Field(description="probability that it is in the image at all")
    found: int = Field(description="instances above the threshold")
    returned: int = Field(description="those of them with the highest scores, in masks")
