"""The public name of what finds things by words and examples; it lives in ``triton_sam.client``."""

from triton_sam.client.concept_predictor import ConceptPredictor
from triton_sam.client.concepts import ConceptSegmentation, FoundConcept

__all__ = ["ConceptPredictor", "ConceptSegmentation", "FoundConcept"]
