"""Small bidirectional models, their tokenizer, and planted heads of every kind that they have."""

import torch
import transformers
from tiny_models import scaled
from tokenizers import Tokenizer, models, pre_tokenizers, processors

CLS, SEP = 2, 3
SIZES = {"vocab_size": 200, "max_position_embeddings": 64, "pad_token_id": 0}
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
ENCODERS = {
    "BertForMaskedLM": lambda: transformers.BertConfig(**SIZES, **SMALL, intermediate_size=64),
    "BertModel": lambda: transformers.BertConfig(**SIZES, **SMALL, intermediate_size=64),
    "RobertaForMaskedLM": lambda: transformers.RobertaConfig(
        **SIZES, **SMALL, intermediate_size=64
    ),
    "DistilBertForMaskedLM": lambda: transformers.DistilBertConfig(
        **SIZES, n_layers=2, n_heads=4, dim=32, hidden_dim=64
    ),
    "ModernBertForMaskedLM": lambda: transformers.ModernBertConfig(
        **SIZES, **SMALL, intermediate_size=64, local_attention=8, global_attn_every_n_layers=2
    ),
}


APART = {
    "ConvBertForMaskedLM": lambda: transformers.ConvBertConfig(
        **SIZES, **SMALL, intermediate_size=64, embedding_size=32, head_ratio=2
    ),
    "MobileBertForMaskedLM": lambda: transformers.MobileBertConfig(
        **SIZES, **SMALL, intermediate_size=64, embedding_size=16, intra_bottleneck_size=32
    ),
}
"""What these make of padding changes the attention beside it."""

NO_SHARES = {
    "SqueezeBertForMaskedLM": lambda: transformers.SqueezeBertConfig(
        **SIZES, **SMALL, intermediate_size=64, embedding_size=32
    ),
    "BigBirdForMaskedLM": lambda: transformers.BigBirdConfig(
        **SIZES, **SMALL, intermediate_size=64, block_size=2, num_random_blocks=1
    ),
}
"""Scores before the softmax, and parts of rows, are what transformers returns of these."""


def encoder(name: str = "BertForMaskedLM", **changes: object) -> transformers.PreTrainedModel:
    config = {**ENCODERS, **APART, **NO_SHARES}[name]()
    config.update(changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return scaled(getattr(transformers, name)(config))


def bert_tokenizer() -> transformers.PreTrainedTokenizerBase:
    """One token a word, `[CLS]` before a text and `[SEP]` after it; w4 ... are ids 4 ..."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(4, 200))]
    by_word = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    by_word.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    by_word.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=by_word,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{n}_token": f"[{n.upper()}]" for n in ("unk", "pad", "cls", "sep")},
    )


def two_sentences() -> torch.Tensor:
    """`[CLS]`, 6 tokens, `[SEP]`, 19 tokens that repeat some of them, `[SEP]`."""
    first = torch.arange(10, 16)
    second = torch.cat([torch.arange(30, 34), first, torch.arange(40, 49)])
    ends = torch.tensor([SEP])
    return torch.cat([torch.tensor([CLS]), first, ends, second, ends])


def planted() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Patterns by the name of the label that they should get, and the tokens they are over."""
    tokens = two_sentences()
    size = len(tokens)
    place = torch.arange(size)

    def at(keys: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(keys.clamp(0, size - 1), size).float()

    same = (tokens[:, None] == tokens).fill_diagonal_(False).float()
    near = ((place[:, None] - place).abs() <= 4).float()
    separators = (tokens == SEP).nonzero().flatten()
    nearest = separators[(place[:, None] - separators).abs().argmin(1)]
    patterns = {
        "next token": at(place + 1),
        "previous token": at(place - 1),
        "current token": at(place),
        "duplicate token": torch.where(same.any(-1, keepdim=True), same, at(place * 0)),
        "local window": near / near.sum(-1, keepdim=True),
        "sink": at(nearest),
        "mixed": torch.full((size, size), 1 / size),
    }
    return {
        label: pattern / pattern.sum(-1, keepdim=True) for label, pattern in patterns.items()
    }, tokens
