"""A language model ready to be looked into, and the token ids that it is run on."""

import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from interp.errors import InputError, told, truth
from interp.kinds.targets import NONE, Blocks
from interp.models.direction import Direction, longest
from interp.models.kinds import alibi_slopes, is_softmax, kinds
from interp.models.rows import encoded, rows_of_ids, without_padding
from interp.models.settings import beyond_vocabulary, special_ids

LOG = logging.getLogger("interp")

_BLANK = "\u2581"
"""How SentencePiece writes a blank."""


@dataclass(frozen=True, eq=False)
class Model:
    """A language model ready to be looked into.

    Attributes:
        hooked: TransformerLens' view of it, with its hooks; None for a model that is not causal,
            which is read as transformers runs it.
        plain: The same weights as transformers runs them; None for a bridge made elsewhere.
        tokenizer: As it came with the model; None if there is none, and then only token ids
            can be run.
        name: The hub's id, or the name of the folder or file.
        revision: The hub's commit, or the file's SHA-256, where there is one.
        windows: For each layer how far back (or either way) it may look, the query included;
            None: no limit; `interp.kinds.targets.Blocks` of a layer that attends within blocks
            (Llama 4).
            Of an encoder-decoder, for the encoder's layers.
        direction: `causal`; `both ways`, as BERT; or `encoder-decoder`, as T5.
        off_cpu: On another device than the CPU, the largest difference of an attention probability
            from the CPU's, on a few tokens when it was loaded; None if they were not compared.
    """

    hooked: TransformerBridge | None
    plain: Any
    tokenizer: Any
    name: str
    revision: str | None
    windows: tuple[int | None, ...]
    direction: Direction = "causal"
    off_cpu: float | None = None

    def __post_init__(self) -> None:
        named = (beyond_vocabulary(x, self._n_embeddings) for x in (self._config, self.tokenizer))
        if beyond := list(dict.fromkeys(name for names in named for name in names)):
            LOG.warning(
                "%s has token ids from 0 to %d, and its settings or its tokenizer name others,"
                " which are taken for none: %s",
                self.name,
                self._n_embeddings - 1,
                ", ".join(beyond),
            )

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers of {self.n_heads} heads"
        attention = " or ".join(dict.fromkeys(self.kinds))
        attention += "" if self.direction == "causal" else f", {self.direction}"
        return (
            f"Model({self.name}: {size}, attention {attention}, {self.dtype_name}, {self.device})"
        )

    @property
    def bridge(self) -> TransformerBridge:
        """TransformerLens' view of the model, with its hooks.

        Raises:
            InputError: If the model is not causal.
        """
        if self.hooked is None:
            way = "looks both ways" if self.direction == "both ways" else f"is {self.direction}"
            raise InputError(
                f"model must be causal, got {self.name}, which {way}: of such models attention"
                " patterns are read, and heads that look both ways scanned, no more"
            )
        return self.hooked

    @property
    def n_layers(self) -> int:
        """Layers, with or without attention."""
        return len(self.windows)

    @property
    def n_heads(self) -> int:
        """Query heads in a layer."""
        if self.hooked is None:
            return int(self._config.num_attention_heads)
        return int(self.hooked.cfg.n_heads)

    def layers_of(self, stack: str | None) -> int:
        """How many layers a stack of an encoder-decoder has; of another model, all."""
        if stack in ("decoder", "cross"):
            names = ("num_decoder_layers", "decoder_layers")
            told = (getattr(self._config, name, None) for name in names)
            return int(next(filter(None, told), self.n_layers))
        return self.n_layers

    @property
    def n_ctx(self) -> int:
        """The longest prompt, in tokens, that the model takes."""
        if self.hooked is None:
            return longest(self.inner, self._config) or sys.maxsize
        return int(self.hooked.cfg.n_ctx)

    @property
    def device(self) -> torch.device:
        """Where the weights are, or the CPU where each is fetched when it is used."""
        there = (weight.device for weight in self.inner.parameters() if not weight.is_meta)
        return next(there, torch.device("cpu"))

    @property
    def on_device(self) -> dict[str, Any]:
        """For a record: the kind of `device`, and `off_cpu` where that is not the CPU."""
        kind = self.device.type
        return {"device": kind} if kind == "cpu" else {"device": kind, "off_cpu": self.off_cpu}

    @property
    def dtype_name(self) -> str:
        """Of the weights, such as `float32`."""
        return str(next(self.inner.parameters()).dtype).removeprefix("torch.")

    @property
    def bos(self) -> int | None:
        """Id of the token that opens a text, or None if the model has none."""
        named = self._config if self.tokenizer is None else self.tokenizer
        return self._known(named, "bos" if self.direction == "causal" else "cls", "bos")

    @property
    def closing(self) -> int | None:
        """Id of the token that ends every text of a model that looks both ways; None for others."""
        if self.direction != "both ways":
            return None
        return self._known(self._config if self.tokenizer is None else self.tokenizer, "sep", "eos")

    def _known(self, named: Any, *ends: str) -> int | None:
        """The first of the named special tokens that there is, if the model knows it."""
        ids = dict(reversed(list(special_ids(named))))  # Of several, the first.
        found = next((ids[name] for end in ends if (name := f"{end}_token_id") in ids), None)
        return found if found is not None and 0 <= found < self._n_embeddings else None

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of the model that stand for no text: BOS, EOS, padding, chat markers and the like."""
        if self.tokenizer is not None:
            listed = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        else:
            listed = {i for _, i in special_ids(self._config)}
        return frozenset(i for i in listed if 0 <= i < self._n_embeddings)

    @cached_property
    def vocabulary(self) -> Int[Tensor, " id"]:
        """Ids of ordinary tokens: known to the model and to the tokenizer, and not special."""
        ids = torch.arange(self._n_embeddings)
        if self.tokenizer is not None:
            ids = ids[: len(self.tokenizer)]
        return ids[~torch.isin(ids, torch.tensor(sorted(self.special), dtype=torch.long))]

    def to_tokens(
        self, inputs: str | Sequence[str] | Any, *, bos: bool = True, decoder: bool = False
    ) -> Int[Tensor, "batch pos"]:
        """The ids that are run for `inputs`; rows are filled up with -1 on the right.

        Wherever padding stood, it comes after the tokens here: they are at positions 0, 1, ...,
        as when each row is run alone, and causal attention never sees what is after them.

        Args:
            inputs: A text, several texts, token ids (`[pos]`, `[batch, pos]` or a list of
                rows, padded with -1 on either side), or what a tokenizer returns, with
                `input_ids` and an `attention_mask`, which alone says what is padding. Ids
                are run as they are.
            bos: Whether a text is to open with BOS. It does so once, also where the text
                spells BOS out; a model without BOS opens with the text. A model that is not
                causal gets all special tokens that its tokenizer adds to a text.
            decoder: Whether a text is for an encoder-decoder's decoder, which begins with a token
                of its own.

        Raises:
            InputError: If there is nothing to run (a text without a token of its own is empty,
                whatever would be added to it), an id is not the model's, padding stands
                between tokens, a row is longer than the model's context, or `bos` is neither True
                nor False.
        """
        bos = truth("bos", bos)
        texts = [inputs] if isinstance(inputs, str) else inputs
        if isinstance(texts, list | tuple) and texts and all(isinstance(t, str) for t in texts):
            rows = [self._encode(text, bos, decoder) for text in texts]
        else:
            padded = encoded(inputs) if isinstance(inputs, Mapping) else rows_of_ids(inputs)
            rows = [without_padding(row, index) for index, row in enumerate(padded)]
        for index, row in enumerate(rows):
            if not row:
                raise InputError(f"prompt must have at least one token, got none in row {index}")
            if len(row) > self.n_ctx:
                raise InputError(
                    f"prompt must fit the model's context of {self.n_ctx} tokens,"
                    f" got {len(row)} in row {index}"
                )
            if odd := [i for i in row if not 0 <= i < self._n_embeddings]:
                raise InputError(
                    f"token ids must be from 0 to {self._n_embeddings - 1},"
                    f" got {odd[0]} in row {index}"
                )
            if self.bos is not None and row[:2] == [self.bos, self.bos]:
                warnings.warn(f"row {index} opens with BOS twice", stacklevel=2)
        length = max(map(len, rows))
        return torch.tensor([row + [NONE] * (length - len(row)) for row in rows])

    def texts_of(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        """The text of each token by itself; `<id>` where the tokenizer does not know it."""
        if self.tokenizer is None:
            return [f"<{i}>" for i in tokens.tolist()]
        return [self._text_of(i) for i in tokens.tolist()]

    def _text_of(self, token: int) -> str:
        if token >= len(self.tokenizer):
            return f"<{token}>"
        # SentencePiece writes the blank before a word as a mark, and drops it in what it decodes.
        piece = self.tokenizer.convert_ids_to_tokens(token)
        if isinstance(piece, str) and piece.startswith(_BLANK):
            return piece.replace(_BLANK, " ")
        return self.tokenizer.decode([token])

    def _encode(self, text: str, bos: bool, decoder: bool) -> list[int]:
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer: give token ids, not text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"prompt must be text that UTF-8 can write, got {text[error.start]!r} at"
                f" character {error.start}"
            ) from None
        try:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        except Exception as error:  # Of a library that has a kind of its own for each fault.
            raise InputError(
                f"{self.name} must have a tokenizer that reads the text, got one that fails:"
                f" {told(error)}"
            ) from error
        if not ids:
            raise InputError("prompt must have at least one token, got an empty text")
        if self.direction != "causal" and not decoder:
            return self.tokenizer(text)["input_ids"] if bos else ids
        first = self._config.decoder_start_token_id if decoder else self.bos
        opening = first if bos else None
        return ids if opening is None or ids[0] == opening else [opening, *ids]

    @cached_property
    def learned_sinks(self) -> bool:
        """Whether part of the attention goes to learned sinks that are no key (gpt-oss)."""
        # transformers' models name the parameter alike.
        return any(name.endswith(".sinks") for name, _ in self.inner.named_parameters())

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """In a few words how each layer attends, as the model's settings have it.

        `full`, `window 4` (the last 4 positions, the query's own among them), `chunked 8` (blocks
        of 8 fixed places), `latent` (to all, by compressed keys), `other` (in a way of the model's
        own, of which the settings tell nothing), or `none` with the settings' word for what stands
        there instead, such as `none (conv)`. `ALiBi` and `learned sinks` follow where the model has
        them.
        """
        layers = range(self.n_layers)
        if self.hooked is not None:
            hooks = self.hooked.hook_dict
            layers = [i for i in layers if f"blocks.{i}.attn.hook_pattern" in hooks]
        return kinds(
            self._config,
            self.windows,
            attending=layers,
            own_way=self.hooked is None and not is_softmax(self.inner),
            alibi=self._alibi,
            learned_sinks=self.learned_sinks,
        )

    @cached_property
    def alibi_slopes(self) -> tuple[float, ...] | None:
        """What each head's scores lose per token of distance; None without known ALiBi slopes."""
        return alibi_slopes(self._config, self.n_heads) if self._alibi else None

    @property
    def _alibi(self) -> bool:
        cfg = getattr(self.hooked, "cfg", None)
        return getattr(cfg, "positional_embedding_type", None) == "alibi"

    @property
    def chunked(self) -> bool:
        """Whether a layer attends within blocks of fixed places (Llama 4), not within a window."""
        return any(isinstance(window, Blocks) for window in self.windows)

    @property
    def inner(self) -> Any:
        """The model as transformers knows it; the one that the bridge wraps, where there is one."""
        return self.plain if self.hooked is None else self.hooked.original_model

    @property
    def _config(self) -> Any:
        return text_config(self.inner)

    @property
    def _n_embeddings(self) -> int:
        if self.hooked is None:
            return int(self._config.vocab_size)
        return int(self.hooked.cfg.d_vocab)


def text_config(model: Any) -> Any:
    """The settings of the language model, also where it is one part of several."""
    config = getattr(model, "config", None)
    return getattr(config, "get_text_config", lambda: config)()
