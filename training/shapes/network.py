"""The network and its processor: LLaVA's own classes from transformers, with small numbers in their configurations."""

from __future__ import annotations

from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

try:  # without torchvision; older versions have one class for both
    from transformers import CLIPImageProcessorPil as CLIPImages
except ImportError:
    from transformers import CLIPImageProcessor as CLIPImages

from training.shapes.scenes import SIDE
from training.shapes.tokens import IMAGE, TEMPLATE

PATCH = 16
IMAGE_TOKENS = (SIDE // PATCH) ** 2


def make_network(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """About seven million parameters, freshly initialised."""
    vision = CLIPVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=6,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=192,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
            image_seq_length=IMAGE_TOKENS,
            vision_feature_layer=-1,
            vision_feature_select_strategy="default",
        )
    )


def make_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """Images of any size become the network's square as in LLaVA 1.5: the shorter side fits, the middle is taken."""
    images = CLIPImages(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        image_token=IMAGE,
        num_additional_image_tokens=1,
    )
