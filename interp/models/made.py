"""Models made here, from hand-set weights or random ones for training; and how to save a model."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

from interp.errors import InputError
from interp.files import staged
from interp.models.identity import digest
from interp.models.load import CONVERTED, opened
from interp.models.model import Model
from interp.models.switches import quiet


def assembled(
    family: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    bos: int,
    words: Sequence[str],
    name: str,
) -> Model:
    """A model of transformers' type `family` with hand-set weights, by their names.

    All others are those of a new model, except that MLPs are zero. `words` has the text of each
    id: BOS is `<s>`, and `<unk>` any word outside the vocabulary.
    """
    ends = {"bos_token_id": bos, "eos_token_id": None, "pad_token_id": None}
    config = transformers.AutoConfig.for_model(family, **settings, **ends)
    with quiet(), torch.random.fork_rng(devices=[]):
        model = transformers.AutoModelForCausalLM.from_config(config)
    new = {name: W.zero_() if ".mlp." in name else W for name, W in model.state_dict().items()}
    model.load_state_dict({**new, **weights})
    ids = {word: i for i, word in enumerate(words)}
    by_word = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    by_word.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=by_word, bos_token="<s>", unk_token="<unk>"
    )
    return opened(model.eval(), tokenizer, name)


def attention_only(
    *, n_ids: int, n_ctx: int, d_model: int, n_heads: int, n_layers: int, seed: int
) -> transformers.GPT2LMHeadModel:
    """A random GPT-2 for training, with attention and norms only; id 0 is its BOS.

    Its MLPs have width 1 and fixed weights of zero. The unembedding is not tied to the
    embedding. Weights have standard deviation `d_model ** -0.5`, which lets attention become
    sharp early; with GPT-2's own 0.02 training first finds other ways to lower the loss.
    """
    config = transformers.GPT2Config(
        vocab_size=n_ids,
        n_positions=n_ctx,
        n_embd=d_model,
        n_layer=n_layers,
        n_head=n_heads,
        n_inner=1,
        initializer_range=d_model**-0.5,
        tie_word_embeddings=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    )
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config)
    model.set_attn_implementation("eager")
    for name, weight in model.named_parameters():
        weight.requires_grad = ".mlp." not in name and ".ln_2." not in name
        if ".mlp." in name:
            torch.nn.init.zeros_(weight)
    return model.eval()


def save(model: Model, folder: str | os.PathLike[str]) -> None:
    """Write a model and its tokenizer as a Hugging Face folder: whole, or not at all."""
    folder = Path(folder)
    with staged(folder) as scratch, quiet():
        there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        own = {*CONVERTED, "generation_config.json", scratch.parent.name}
        if others := sorted(there - own):
            raise InputError(f"{folder} must be a folder of the model alone, got {others[0]} in it")
        _write(model.plain, scratch)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(scratch)


def _write(plain: Any, folder: Path) -> None:
    """Write the weights, and load them again: bit for bit the same, or an `InputError`.

    transformers writes memory that two weights share once, and finds only those ties again that
    the settings declare. Weights that are tied otherwise are written as copies.
    """
    declared, seen, weights = getattr(plain, "all_tied_weights_keys", None) or {}, set(), {}
    for name, weight in plain.state_dict().items():
        is_tied = weight.data_ptr() in seen and name not in declared
        weights[name] = weight.clone() if is_tied else weight
        seen.add(weight.data_ptr())
    plain.save_pretrained(folder, state_dict=dict(weights))
    again = type(plain).from_pretrained(folder, dtype=plain.dtype, use_safetensors=True)
    if digest(again.state_dict()) != digest(weights):
        raise InputError(
            "model must have the same weights when it is loaded again, got others: its settings"
            " do not say which weights are shared"
        )
