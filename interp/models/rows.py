"""Prompts from whatever holds them; rows of token ids, and where their padding is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.errors import InputError, Whole, quoted, validated
from interp.kinds.targets import NONE
from interp.models.chat import messages_of

_ROWS = TypeAdapter(list[list[Whole]])


@dataclass(frozen=True, eq=False)
class Rows:
    """Prompts as a model runs them, from `Model.rows_of`.

    Attributes:
        tokens: Token ids; -1 is padding, on the right.
        template: Tokens that a chat template added to the messages.
    """

    tokens: Int[Tensor, "batch pos"]
    template: Bool[Tensor, "batch pos"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], template: Sequence[Sequence[bool]]) -> "Rows":
        """Rows of several lengths; `template` has an entry for each token."""
        return cls(
            pad_sequence([torch.tensor(row) for row in rows], True, NONE),
            pad_sequence([torch.tensor(row, dtype=torch.bool) for row in template], True, False),
        )

    def beginning(self, most: int | None) -> "Rows":
        """The first `most` tokens of each row."""
        return Rows(self.tokens[:, :most], self.template[:, :most])


def texts_in(inputs: Any) -> list[Any] | None:
    """The texts and conversations, if `inputs` are one, or several; None for token ids."""
    if isinstance(inputs, str) or messages_of(inputs):
        return [inputs]
    several = isinstance(inputs, list | tuple) and len(inputs) > 0
    if several and all(isinstance(one, str) or messages_of(one) for one in inputs):
        return [*inputs]
    return None


def unpacked(inputs: Any) -> Any:
    """`inputs` as lists, from arrays, columns of a table and other sequences."""
    if hasattr(inputs, "tolist"):
        return inputs.tolist()
    is_other = isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes | list | tuple)
    return [*inputs] if is_other else inputs


def each_prompt(inputs: Any) -> list[Any]:
    """Each prompt of `inputs`, as `Model.to_tokens` takes it alone."""
    inputs = unpacked(inputs)
    if (texts := texts_in(inputs)) is not None:
        return texts
    if isinstance(inputs, Mapping):
        return encoded(inputs)
    if not isinstance(inputs, list | tuple):
        raise InputError(f"prompts must be texts, messages or token ids, got {quoted(inputs)}")
    return [inputs] if inputs and all(isinstance(one, int) for one in inputs) else [*inputs]


def rows_of_ids(inputs: Any) -> list[list[int]]:
    """One list of whole ids a row, from `[pos]`, `[batch, pos]` or a list of rows of any type."""
    rows = _lists(inputs)
    if not rows:
        raise InputError("prompt must have at least one token, got none")
    return validated("inputs", rows, _ROWS)


_OF_TEXT = (
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "length", "labels"),
    *("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping"),
    "num_truncated_tokens",
)
"""What a tokenizer returns for a text; other names belong to images, sounds and the like."""


def encoded(encoding: Mapping[str, Any]) -> list[list[int]]:
    """Ids of what a tokenizer returns, with -1 where its attention mask is 0.

    The mask decides, never the id: the id of padding is often that of BOS or EOS. Refuses what
    would be ignored: other inputs, other positions than 0, 1, ..., and segments.
    """
    if others := [name for name in encoding if name not in _OF_TEXT]:
        raise InputError(f"inputs must be token ids only, got {quoted(others[0])}")
    rows = rows_of_ids(encoding.get("input_ids"))
    if any(map(any, _lists(encoding.get("token_type_ids", [])))):
        raise InputError("token_type_ids must be 0 for this model: it runs no segments")
    if encoding.get("attention_mask") is not None:
        both = _paired(rows, encoding, "attention_mask")
        if any(real not in (0, 1) or (real and i < 0) for row in both for i, real in row):
            raise InputError("attention_mask must be 0 or 1, and 0 where input_ids are -1")
        rows = [[i if real else NONE for i, real in row] for row in both]
    if encoding.get("position_ids") is not None:
        for row in _paired(rows, encoding, "position_ids"):
            places = [place for i, place in row if i != NONE]
            if places != [*range(len(places))]:
                raise InputError("position_ids must be 0, 1, ... without padding, got others")
    return rows


def segments_of(encoding: Mapping[str, Any]) -> Int[Tensor, "batch pos"] | None:
    """Which text each token belongs to, in the order of `Model.to_tokens`; None if all to one."""
    if not any(map(any, _lists(encoding.get("token_type_ids", [])))):
        return None
    rows = _paired(encoded({**encoding, "token_type_ids": []}), encoding, "token_type_ids")
    kept = [torch.tensor([segment for i, segment in row if i != NONE]) for row in rows]
    return pad_sequence(kept, batch_first=True)


def _paired(rows: list[list[int]], encoding: Mapping[str, Any], name: str) -> list[Any]:
    """Each row's ids with the entries of `name`, whose single row may count for all."""
    others = _lists(encoding[name])
    others = others * len(rows) if len(others) == 1 else others
    if list(map(len, others)) != list(map(len, rows)):
        raise InputError(f"{name} must have an entry for each of input_ids")
    return [[*zip(*both)] for both in zip(rows, others)]


def without_padding(row: list[int], index: int) -> list[int]:
    """The tokens between the padding (-1) at the ends of row number `index`."""
    real = [place for place, i in enumerate(row) if i != NONE]
    tokens = row[real[0] : real[-1] + 1] if real else []
    if NONE in tokens:
        raise InputError(
            f"padding must be at the ends of a row, got it between tokens in row {index}"
        )
    return tokens


def to_run(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """Ids to run for rows padded on the right: the first token of a row also is its padding."""
    return torch.where(tokens == NONE, tokens[:, :1], tokens)


def rows_by_length(*texts: Int[Tensor, "batch _"] | None) -> dict[tuple[int, ...], list[int]]:
    """Numbers of the rows, by their number of tokens in each text: together they need no padding.

    Example:
        >>> rows_by_length(torch.tensor([[5, 6], [7, -1], [8, 9]]))
        {(2,): [0, 2], (1,): [1]}
    """
    lengths = [(text != NONE).sum(-1).tolist() for text in texts if text is not None]
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, sizes in enumerate(zip(*lengths, strict=True)):
        groups.setdefault(sizes, []).append(row)
    return groups


def _lists(values: Any) -> list[Any]:
    """Rows as lists, from tensors, arrays or sequences; flat values are one row."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple):
        raise InputError(f"inputs must be text, chat messages or token ids, got {quoted(values)}")
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in values]
    return rows if any(isinstance(row, list | tuple) for row in rows) else [rows] * bool(rows)
