"""A tokenizer of whole words: the model knows what its scenes and questions say, and nothing else."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from training.shapes.scenes import COLOURS, NUMBERS, PLACES, SHAPES

UNKNOWN, PAD, BEGIN, END, IMAGE = "<unk>", "<pad>", "<s>", "</s>", "<image>"
_SPECIAL = (UNKNOWN, PAD, BEGIN, END, IMAGE)
#: The chat template of LLaVA 1.5.
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}USER: {% else %}ASSISTANT: {% endif %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% if message['role'] == 'user' %} {% else %}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def words() -> list[str]:
    """Every word and sign of questions and answers, in a fixed order."""
    sentences = [
        "USER : ASSISTANT . , ?",
        "What what colour color is the The How how many shapes shape are there There Where where",
        "Is Yes No Nothing A An a an and Describe describe this image in detail do you see",
        *NUMBERS,
        *COLOURS,
        *SHAPES,
        *(f"{shape}s" for shape in SHAPES),
        *PLACES,
    ]
    return list(dict.fromkeys(word for sentence in sentences for word in sentence.split()))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words by spaces and signs; unknown ones are all the same to the model."""
    vocabulary = {token: number for number, token in enumerate((*_SPECIAL, *words()))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Strip()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # puts no space before a full stop
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PAD,
        bos_token=BEGIN,
        eos_token=END,
        additional_special_tokens=[IMAGE],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
