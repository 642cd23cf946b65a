"""LLaVA 1.5 at full size with random weights: as fast and as large as the real one; its text is noise."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

#: Tokens of the text, and rows of LLaVA 1.5's embedding, which is padded to a multiple of 64.
_VOCABULARY, _ROWS = 32_002, 32_064
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | upper }}: "
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def make_random_llava(folder: Path, *, layers: int | None = None) -> Path:
    """Writes a checkpoint in bfloat16 that ``from_pretrained`` loads.

    Args:
        layers: of the language model, to try a small machine; None for all 32.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = _tokenizer()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    # The defaults of these classes are the real numbers: CLIP ViT-L/14 at 336 px, and the 7B Llama of Vicuna.
    vision = transformers.CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        image_size=336,
        patch_size=14,
        projection_dim=768,
    )
    text = transformers.LlamaConfig(vocab_size=_ROWS, max_position_embeddings=4096, rms_norm_eps=1e-5, **ids)
    if layers is not None:
        text.num_hidden_layers = layers
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=576,
        **ids,
    )
    torch.manual_seed(0)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        try:
            network = transformers.LlavaForConditionalGeneration(config)
        finally:
            torch.set_default_dtype(torch.float32)
    network.generation_config = transformers.GenerationConfig(**ids)
    network.save_pretrained(folder)
    images_class = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    processor = transformers.LlavaProcessor(
        images_class(size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=_TEMPLATE,
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    processor.save_pretrained(folder)
    return folder


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Bytes, and made-up words up to the real number of tokens, so that decoding costs as much as the real one."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<pad>", "<s>", "</s>", "<unk>", "<image>", *alphabet]
    words += [f"w{number}" for number in range(_VOCABULARY - len(words))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        padding_side="left",
    )
