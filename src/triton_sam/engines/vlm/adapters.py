"""Adapters for LLaVA and Kosmos-2: prompt formats, processors, and how their tokens become text and boxes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from triton_sam.engines.vlm.base import Question
from triton_sam.engines.vlm.crops import Crop, keeps_ratio
from triton_sam.errors import InvalidInput

#: Beyond this aspect ratio only the visible part of an image goes to the processor.
_LONGEST_RATIO = 8
_PATCH, _PLACE, _PATCHES = re.compile(r"<patch_index_([^>]*)>"), re.compile("[0-9]{4}"), 1024


class _ProcessorAdapter:
    """Base of both adapters: a processor of transformers with a tokenizer and an image processor."""

    without_tags = False

    def __init__(self, processor: Any, network: Any) -> None:
        self._processor = processor
        tokenizer = processor.tokenizer
        self.pad_token = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._processor.tokenizer.decode(tokens, skip_special_tokens=True))

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        return None

    def _encode(self, question: Question, text: str) -> dict[str, torch.Tensor]:
        return dict(self._processor(images=self._visible(question), text=text, return_tensors="pt"))

    def _visible(self, question: Question) -> Image.Image:
        """The part of the image that the model will see.

        A processor that fits the shorter side enlarges the whole image before it crops the centre. For an image a
        thousand times as wide as high that would take gigabytes. Less extreme images are passed unchanged.
        """
        width, height = question.image.size
        if max(width, height) <= _LONGEST_RATIO * min(width, height) or not keeps_ratio(
            self._processor.image_processor
        ):
            return question.image
        left, top, right, bottom = Crop.of(self._processor.image_processor, (width, height)).seen
        # With a margin: resampling reads neighbouring pixels, and the centre must stay the centre.
        more_x, more_y = min(left, width - right, _LONGEST_RATIO), min(top, height - bottom, _LONGEST_RATIO)
        part = question.image.crop((left - more_x, top - more_y, right + more_x, bottom + more_y))
        if max(part.size) > _LONGEST_RATIO * _LONGEST_RATIO * min(part.size):
            raise InvalidInput(f"the image of {width} x {height} pixels is too long and narrow: send a part of it")
        return part


class ChatAdapter(_ProcessorAdapter):
    """Conversations in the checkpoint's own chat template. The image comes before the first question."""

    def __init__(self, processor: Any, network: Any) -> None:
        super().__init__(processor, network)
        if not getattr(processor, "image_token", None) or not getattr(processor, "chat_template", None):
            raise ValueError("it belongs to another model: it has no chat template with an image token")

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        token = str(self._processor.image_token)
        conversation = []
        for number, message in enumerate(question.messages):
            if token in message.text:
                raise InvalidInput(f"the server inserts the image token {token} itself: remove it from the text")
            image = [{"type": "image"}] if number == 0 else []
            conversation.append({"role": message.role, "content": [*image, {"type": "text", "text": message.text}]})
        text = self._processor.apply_chat_template(conversation, add_generation_prompt=True)
        return self._encode(question, text)


class GroundedAdapter(_ProcessorAdapter):
    """Plain text that the model continues, with the locations of phrases: two of 32 x 32 patches each."""

    without_tags = True
    _GROUNDING = "<grounding>"

    def __init__(self, processor: Any, network: Any) -> None:
        super().__init__(processor, network)
        if not hasattr(processor, "post_process_generation") or not hasattr(network, "text_model"):
            raise ValueError("it belongs to another model: it gives no locations of phrases")
        network.text_model.register_forward_pre_hook(_unpadded_positions, with_kwargs=True)

    def inputs(self, question: Question) -> dict[str, torch.Tensor]:
        inputs = self._encode(question, self._prompt(question))
        inputs["image_embeds_position_mask"] = inputs["image_embeds_position_mask"].bool()
        return inputs

    def _prompt(self, question: Question) -> str:
        """The prompt in the form of the training data. A text that begins with ``<grounding>`` is used unchanged."""
        text = question.text
        for token in (self._processor.boi_token, self._processor.eoi_token):
            if token in text:
                raise InvalidInput(f"the server inserts the image token {token} itself: remove it from the text")
        if any(not _PLACE.fullmatch(number) or int(number) >= _PATCHES for number in _PATCH.findall(text)):
            raise InvalidInput(f"a location in a text is <patch_index_0000> to <patch_index_{_PATCHES - 1}>")
        if text.startswith(self._GROUNDING):
            return text
        asked = f"Question: {text} Answer:" if text.rstrip().endswith("?") else text
        return f"{self._GROUNDING} {asked}"

    def entities(self, question: Question, tokens: Sequence[int]) -> list[Mapping[str, Any]] | None:
        """Phrases with boxes, also those that the user marked as ``<phrase>`` in the prompt."""
        prompt, said = self._prompt(question), self.decode(tokens)
        text, _ = self._processor.post_process_generation(said)
        whole, found = self._processor.post_process_generation(prompt + said)
        begin = len(whole) - len(text)
        crop = Crop.of(self._processor.image_processor, question.size)
        return [
            {
                "phrase": phrase,
                "start": start - begin if start >= begin else None,
                "end": end - begin if start >= begin else None,
                "boxes": [place for box in boxes if (place := crop.to_original(box)) is not None],
            }
            for phrase, (start, end), boxes in found
        ]


def _unpadded_positions(module: Any, arguments: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Sets position ids that skip the padding of shorter rows, which the network itself would count."""
    mask = named.get("attention_mask")  # [B,T]; None if nothing is padded
    if mask is not None:
        places = mask.cumsum(-1) * mask + module.config.pad_token_id
        named["position_ids"] = places[:, -named["input_ids"].shape[1] :]
    return arguments, named
