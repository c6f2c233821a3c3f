"""A language model that is ready to be examined, and the token ids that it runs."""

import logging
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakSet

import torch
from jaxtyping import Int
from pydantic import Field, TypeAdapter
from torch import Tensor

from interp.errors import InputError, Whole, checked, quoted, told, validated
from interp.kinds.targets import Blocks
from interp.models import families
from interp.models.chat import encode_messages, messages_of
from interp.models.families import Direction, special_ids, text_config
from interp.models.identity import digest, of_bridge
from interp.models.rows import Rows, encoded, rows_of_ids, texts_in, unpacked, without_padding
from interp.models.switches import alone, is_ours, quiet
from interp.models.wrapped import without_recorders
from interp.text import with_bytes

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge

LOG = logging.getLogger("interp")

_BLANK = "\u2581"  # How SentencePiece writes a blank.


@dataclass(frozen=True, eq=False)
class Model:
    """A language model that is ready to be examined.

    Attributes:
        plain: The model as transformers runs it; None for a bridge made elsewhere.
        tokenizer: The model's tokenizer; None if it takes token ids only.
        name: The hub's id, or the name of the folder or file.
        revision: The hub's commit, or the file's SHA-256, where there is one.
        adapters: PEFT's adapters that are merged into the weights (`interp.models.identity`).
        quantization: How the weights were quantized, as their file or their settings say.
        windows: For each layer (of the encoder) how many positions back, or either way, a query
            sees, its own included; None: no limit; `interp.kinds.targets.Blocks`: chunks.
        direction: `causal`; `both ways`, as BERT; or `encoder-decoder`, as T5.
        off_cpu: Largest difference of an attention probability from the CPU; None: not compared.
        given: A bridge made elsewhere.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=64, length=33)
        >>> toy.to_tokens([[0, 5, 6]])
        tensor([[0, 5, 6]])
    """

    plain: Any
    tokenizer: Any
    name: str
    revision: str | None
    windows: tuple[int | None, ...]
    direction: Direction = "causal"
    off_cpu: float | None = None
    given: "TransformerBridge | None" = None
    adapters: Any = None
    quantization: Any = None

    def __post_init__(self) -> None:
        named = [*special_ids(self._config), *special_ids(self.tokenizer)]
        if beyond := {f"{name} {i}": 0 for name, i in named if not 0 <= i < self.n_embeddings}:
            LOG.warning(
                "%s has token ids from 0 to %d: ignoring special tokens outside the vocabulary: %s",
                self.name,
                self.n_embeddings - 1,
                ", ".join(beyond),
            )

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: nothing that was built from the model's modules."""
        state = {n: value for n, value in vars(self).items() if n not in ("bridge", "parts")}
        return state | {"plain": self.plain and without_recorders(self.plain)}

    def __repr__(self) -> str:
        size = f"{self.n_layers} layers of {self.n_heads} heads"
        kinds = " or ".join(dict.fromkeys(self.kinds))
        kinds += "" if self.direction == "causal" else f", {self.direction}"
        return f"Model({self.name}: {size}, attention {kinds}, {self.dtype_name}, {self.device})"

    @cached_property
    def bridge(self) -> "TransformerBridge":
        """TransformerLens' view of a second model over the same weights, for hooks of your own.

        Built when it is first used; only families that TransformerLens knows have one.
        """
        check_causal(self)
        if self.given is not None:
            return self.given
        with alone(self.plain), quiet():  # TransformerLens changes settings when it is imported.
            from interp.models.bridge import build

            # Another thread may have built it meanwhile.
            return vars(self).get("bridge") or build(self.plain, self.tokenizer, self.name)

    @property
    def n_layers(self) -> int:
        """Number of layers, with or without attention."""
        return len(self.windows)

    @property
    def n_heads(self) -> int:
        """Number of query heads in a layer."""
        if self.given is not None:
            return int(self.given.cfg.n_heads)
        number = self._config.num_attention_heads
        if self.direction == "causal":  # BART's is that of its encoder.
            number = getattr(self._config, "decoder_attention_heads", number)
        # ConvBERT replaces a part of the heads by convolutions.
        return max(1, number // getattr(self._config, "head_ratio", 1))

    def layers_of(self, stack: str | None) -> int:
        """Number of layers in a stack of an encoder-decoder; of another model, in all."""
        if stack not in ("decoder", "cross"):
            return self.n_layers
        names = ("num_decoder_layers", "decoder_layers", "num_hidden_layers")
        return self._decoder_size(*names)

    def heads_of(self, stack: str | None) -> int:
        """Number of heads in a layer of a stack of an encoder-decoder; of another, `n_heads`."""
        if stack not in ("decoder", "cross"):
            return self.n_heads
        names = ("num_decoder_attention_heads", "decoder_attention_heads", "num_attention_heads")
        return self._decoder_size(*names)

    def _decoder_size(self, *names: str) -> int:
        settings = text_config(self.inner, "decoder")
        return int(next(filter(None, (getattr(settings, name, None) for name in names))))

    @cached_property
    def attending(self) -> tuple[int, ...]:
        """Layers that have attention."""
        found = layers = range(self.n_layers)
        if self.given is not None:
            hooks = self.given.hook_dict
            found = [i for i in layers if f"blocks.{i}.attn.hook_pattern" in hooks]
        elif self.direction == "causal":
            found = [i for i in families.attention_modules(self.plain) if i in layers]
        if not found:
            raise InputError(f"model must have attention, got {self.name}, which has none")
        return tuple(found)

    @cached_property
    def parts(self) -> dict[Any, int]:
        """The layer of each module inside an attention module."""
        return families.attention_parts(self.plain)

    @property
    def n_ctx(self) -> int:
        """Longest prompt, in tokens."""
        if self.given is not None:
            return int(self.given.cfg.n_ctx)
        return families.context(self.plain, self.direction) or sys.maxsize

    @property
    def device(self) -> torch.device:
        """Device of the weights; the CPU where each is fetched when it is used."""
        devices = (weight.device for weight in self.inner.parameters() if not weight.is_meta)
        return next(devices, torch.device("cpu"))

    @property
    def dtype_name(self) -> str:
        """Data type of the weights, such as `float32`."""
        return str(next(self.inner.parameters()).dtype).removeprefix("torch.")

    @property
    def digest(self) -> str | None:
        """Digest of all weights and rotary angles now (`interp.models.identity.digest`)."""
        own = self.plain.state_dict() if self.given is None else of_bridge(self.inner)
        # The tables in use change with the length of the prompt in some models.
        tables = (b for n, b in self.inner.named_buffers() if n.endswith("original_inv_freq"))
        return digest(own | {f"rotary {i}": table for i, table in enumerate(tables)})

    @property
    def bos(self) -> int | None:
        """Id of the token that opens a text, or None if the model has none."""
        return self._known("bos" if self.direction == "causal" else "cls", "bos")

    @property
    def closing(self) -> int | None:
        """Id of the token that ends every text of a bidirectional model; None for others."""
        return self._known("sep", "eos") if self.direction == "both ways" else None

    def _known(self, *ends: str) -> int | None:
        """First of the named special tokens that exists, if the model has an embedding for it."""
        named = self._config if self.tokenizer is None else self.tokenizer
        ids = dict(reversed(list(special_ids(named))))  # The first of several.
        found = next((ids[name] for end in ends if (name := f"{end}_token_id") in ids), None)
        return found if found is not None and 0 <= found < self.n_embeddings else None

    @cached_property
    def special(self) -> frozenset[int]:
        """Ids of the model that stand for no text: BOS, EOS, padding, chat markers and the like."""
        listed = {i for _, i in special_ids(self._config)}
        if self.tokenizer is not None:
            listed = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        return frozenset(i for i in listed if 0 <= i < self.n_embeddings)

    @cached_property
    def vocabulary(self) -> Int[Tensor, " id"]:
        """Ids of ordinary tokens: known to the model and to the tokenizer, and not special."""
        ids = torch.arange(self.n_embeddings)
        ids = ids if self.tokenizer is None else ids[: len(self.tokenizer)]
        return ids[~torch.isin(ids, torch.tensor(sorted(self.special), dtype=torch.long))]

    @checked
    def to_tokens(
        self,
        inputs: str | Sequence[str] | Any,
        *,
        bos: bool = True,
        decoder: bool = False,
        special_as_text: bool = False,
    ) -> Int[Tensor, "batch pos"]:
        """Token ids that the model runs for `inputs`; rows are filled up with -1 on the right.

        Padding on either side ends up after the tokens. They are at positions 0, 1, ..., as when
        each row runs alone, and causal attention never sees what comes after them.

        Args:
            inputs: A text, several texts, token ids (`[pos]`, `[batch, pos]` or a list of
                rows, padded with -1 on either side), or the output of a tokenizer, with
                `input_ids` and an `attention_mask`, which alone decides what is padding. Ids
                run unchanged. Or chat messages, `[{"role": "user", "content": ...}]`, one
                conversation or several, which the tokenizer's chat template turns into text.
            bos: Whether a text opens with BOS. It does so once, also where the text spells BOS
                out; a model without BOS opens with the text. A model that is not causal gets
                all special tokens that its tokenizer adds to a text.
            decoder: Whether a text is for an encoder-decoder's decoder, which begins with a start
                token.
            special_as_text: Whether the name of a special token in a text, such as
                `<|endoftext|>`, is plain text, and not that token.
        """
        options = {"bos": bos, "decoder": decoder, "special_as_text": special_as_text}
        return self.rows_of(inputs, **options).tokens

    def rows_of(
        self,
        inputs: Any,
        *,
        bos: bool = True,
        decoder: bool = False,
        special_as_text: bool = False,
    ) -> Rows:
        """`to_tokens`, with the tokens that a chat template added; `Rows` come back as they are."""
        if isinstance(inputs, Rows):
            return inputs
        inputs = unpacked(inputs)
        if (texts := texts_in(inputs)) is not None:
            pairs = [self._encode(text, bos, decoder, special_as_text) for text in texts]
        else:
            padded = encoded(inputs) if isinstance(inputs, Mapping) else rows_of_ids(inputs)
            ids = [without_padding(row, index) for index, row in enumerate(padded)]
            pairs = [(row, [False] * len(row)) for row in ids]
        rows = [row for row, _ in pairs]
        longest, most = self.n_ctx, self.n_embeddings - 1
        if decoder:
            longest = families.context(self.plain, self.direction, "decoder") or sys.maxsize
            most = self._decoder_size("vocab_size") - 1
        for index, row in enumerate(rows):
            if not row:
                raise InputError(f"prompt must have at least one token, got none in row {index}")
            if len(row) > longest:
                raise InputError(
                    f"prompt must fit the model's context of {longest} tokens,"
                    f" got {len(row)} in row {index}"
                )
            if odd := [i for i in row if not 0 <= i <= most]:
                raise InputError(f"token ids must be from 0 to {most}, got {odd[0]} in row {index}")
            if self.bos is not None and row[:2] == [self.bos, self.bos]:
                warnings.warn(f"row {index} opens with BOS twice", stacklevel=4)
        return Rows.of(rows, [template for _, template in pairs])

    def texts_of(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        """Text of each token alone; `<id>` where the tokenizer does not know it.

        Bytes that are part of a character are `<0xF0>`, in hexadecimal.
        """
        return [self._text_of(i) for i in tokens.tolist()]

    def _text_of(self, token: int) -> str:
        if self.tokenizer is None or token >= len(self.tokenizer):
            return f"<{token}>"
        # SentencePiece marks the blank before a word, and drops it when it decodes.
        piece = self.tokenizer.convert_ids_to_tokens(token)
        if isinstance(piece, str) and piece.startswith(_BLANK):
            return piece.replace(_BLANK, " ")
        text = self.tokenizer.decode([token])
        return with_bytes(piece) or text if "\ufffd" in text else text

    def _encode(
        self, text: Any, bos: bool, decoder: bool, special_as_text: bool
    ) -> tuple[list[int], list[bool]]:
        """Ids of a text or of a conversation, and whether a chat template added each."""
        if (messages := messages_of(text)) is not None:
            if special_as_text:
                raise InputError("special_as_text must be False for chat messages, got True")
            return encode_messages(self.tokenizer, messages)
        if self.tokenizer is None:
            raise InputError(f"{self.name} has no tokenizer: give token ids, not text")
        how = {"split_special_tokens": True} if special_as_text else {}
        try:
            ids = self.tokenizer(text, add_special_tokens=False, **how)["input_ids"]
        except Exception as error:  # Libraries raise errors of many kinds.
            raise InputError(
                f"prompt must be text that the tokenizer reads, got {quoted(text)}: {told(error)}"
            ) from error
        if not ids:
            raise InputError("prompt must have at least one token, got an empty text")
        if special_as_text:
            names = self.tokenizer.convert_ids_to_tokens([i for i in ids if i in self.special])
            if kept := [name for name in names if name in text]:
                got = f"got True for a tokenizer that keeps {quoted(kept[0])}"
                raise InputError(f"special_as_text must be False, {got}")
        first = self.inner.config.decoder_start_token_id if decoder else self.bos
        if bos and self.direction != "causal" and not decoder:
            ids = self.tokenizer(text, **how)["input_ids"]
        elif bos and first not in (None, ids[0]):
            ids = [first, *ids]
        return ids, [False] * len(ids)

    @cached_property
    def learned_sinks(self) -> bool:
        """Whether part of the attention goes to learned sinks, which are no keys (gpt-oss)."""
        return any(name.endswith(".sinks") for name, _ in self.inner.named_parameters())

    def has_sinks(self, layer: int) -> bool:
        """Whether a layer of such a model has learned sinks; some have them in windows alone."""
        if not self.learned_sinks or self.plain is None:
            return self.learned_sinks
        parts = (part for part, i in self.parts.items() if i == layer)
        return any(getattr(part, "sinks", None) is not None for part in parts)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """How each layer attends, in a few words, by the model's settings.

        `full`, `window 4` (the last 4 positions, the query's own included), `chunked 8` (chunks
        of 8 fixed positions), `latent` (full, with compressed keys), `other` (the settings do not
        describe it), or `none` with the settings' word for what the layer is instead, such as
        `none (conv)`. `ALiBi` and `learned sinks` follow where the model has them, and
        `no rotary` in layers without rotary positions where other layers have them.
        """
        is_known = self.direction == "causal" or families.is_softmax(self.inner)
        latent = getattr(self._config, "kv_lora_rank", None)
        whole = "other" if not is_known else "latent" if latent else "full"
        alibi = ", ALiBi" * families.is_alibi(self._config)
        listed = families.listed(self._config, self.n_layers)
        unrotated = families.without_rotary(self._config, self.windows)
        kinds = []
        for layer, width in enumerate(self.windows):
            also = alibi + ", learned sinks" * self.has_sinks(layer)
            if layer not in self.attending:
                name = listed[layer].replace("_", " ") if listed else "full attention"
                kinds.append("none" if name == "full attention" else f"none ({name})")
            elif width is None:
                kinds.append(whole + also)
            else:
                limit = "chunked" if isinstance(width, Blocks) else "window"
                kinds.append(f"{limit} {width}{also}")
            kinds[-1] += ", no rotary" * (layer in unrotated)
        return tuple(kinds)

    @cached_property
    def alibi_slopes(self) -> tuple[float, ...] | None:
        """What each head's scores lose per token of distance; None without known ALiBi slopes."""
        return families.alibi_slopes(self._config, self.n_heads)

    @property
    def inner(self) -> Any:
        """The model of transformers: `plain`, or the one that a given bridge wraps."""
        return self.plain if self.given is None else self.given.original_model

    @property
    def _config(self) -> Any:
        return text_config(self.inner)

    @property
    def n_embeddings(self) -> int:
        """Number of token ids that the model has an embedding for."""
        return int(self.given.cfg.d_vocab if self.given else self._config.vocab_size)


def attention_layers(model: Model, layers: Any, stack: str | None = None) -> list[int]:
    """The layers asked for, or all that have attention; `stack` is an encoder-decoder's."""
    number = model.layers_of(stack)
    attending = list(model.attending) if stack is None else list(range(number))
    if layers is None:
        return attending
    kind = TypeAdapter(list[Annotated[Whole, Field(ge=0, lt=number)]])
    wanted = validated("layers", list(layers) if isinstance(layers, Iterable) else layers, kind)
    absent = [layer for layer in wanted if layer not in attending]
    if absent or not wanted:
        raise InputError(f"layers must have attention, got {absent} of {model.name}")
    return wanted


def check_causal(model: Model) -> None:
    """Refuse a model that looks both ways."""
    if model.direction != "causal":
        way = "looks both ways" if model.direction == "both ways" else f"is {model.direction}"
        raise InputError(
            f"model must be causal, got {model.name}, which {way}: for such models use"
            " attention_patterns, or scan_heads on an encoder"
        )


_WARNED: WeakSet[Model] = WeakSet()


def warn_of_bridge_hooks(model: Model) -> None:
    """Warn once if a user's hook is on `model.bridge`, since this package runs `model.plain`."""
    points = getattr(vars(model).get("bridge"), "hook_dict", {}).items()
    names = [name for name, at in points if any(not is_ours(h.user_hook) for h in at.fwd_hooks)]
    if names and model.given is None and model not in _WARNED:
        _WARNED.add(model)
        LOG.warning(
            "ignoring the hook at %s of model.bridge: set hooks on modules of model.plain instead,"
            " which is the model that runs here",
            names[0],
        )


def check_heads(model: Model, layer: int, number: int, stack: str | None = None) -> None:
    """Refuse a layer whose number of heads is not the one in the model's settings."""
    if number != (due := model.heads_of(stack)):
        raise InputError(
            f"model must have its {due} heads in every layer, got {model.name}, which"
            f" has {number} in layer {layer}"
        )
