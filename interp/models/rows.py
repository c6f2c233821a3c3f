"""Rows of token ids, and where their padding is, from whatever holds them."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.errors import InputError, quoted, told, whole
from interp.kinds.targets import NONE


def rows_of_ids(inputs: Any) -> list[list[int]]:
    """One list of ids a row, from `[pos]`, `[batch, pos]` or a list of rows of any kind.

    Raises:
        InputError: If there are none, or something else is among them.
    """
    rows = _lists(inputs)
    if rows is None:
        raise InputError(f"inputs must be text or token ids, got {type(inputs).__name__}")
    if not rows:
        raise InputError("prompt must have at least one token, got none")
    try:
        return [[whole("token id", i) for i in row] for row in rows]
    except InputError:
        raise InputError(
            "inputs must be text or whole token ids, got something else among them"
        ) from None


_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "length")
_OF_TEXT += ("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "labels")
_OF_TEXT += ("num_truncated_tokens",)
"""What a tokenizer returns of a text; other names are of pictures, sounds and the like."""


def encoded(encoding: Mapping[str, Any]) -> list[list[int]]:
    """The ids of what a tokenizer returns, with -1 where its attention mask is 0.

    The mask decides, never the id: the padding's id is often that of BOS or EOS.

    Raises:
        InputError: If there are no ids, the mask is not 0 or 1 for each of them, they are to be
            run at other positions than these rows are, there are segments, which are read by
            `segments_of` alone, or something else that is not run.
    """
    if "input_ids" not in encoding:
        raise InputError(f"inputs must hold input_ids, got {quoted(list(encoding))}")
    if others := [str(name) for name in encoding if name not in _OF_TEXT]:
        raise InputError(f"inputs must be token ids alone, got {others[0][:80]}, which is not run")
    rows = rows_of_ids(encoding["input_ids"])
    if any(map(any, _lists(encoding.get("token_type_ids", [])) or [])):
        raise InputError("token_type_ids must be 0, got others: segments are not run")
    if encoding.get("attention_mask") is not None:
        rows = _masked(rows, encoding)
    _refuse_other_positions(encoding.get("position_ids"), rows)
    return rows


def _masked(rows: list[list[int]], encoding: Mapping[str, Any]) -> list[list[int]]:
    mask = _lists(encoding["attention_mask"]) or []
    if list(map(len, mask)) != list(map(len, rows)):
        raise InputError(
            "attention_mask must have an entry for each of input_ids,"
            f" got rows of {list(map(len, mask))} for {list(map(len, rows))}"
        )
    if odd := [flag for row in mask for flag in row if flag not in (0, 1)]:
        raise InputError(f"attention_mask must be 0 or 1, got {quoted(odd[0])}")
    pairs = [list(zip(*both, strict=True)) for both in zip(rows, mask, strict=True)]
    if any(real and i < 0 for row in pairs for i, real in row):
        raise InputError(
            "attention_mask must be 0 where input_ids are no ids, got 1 at an id of -1"
        )
    return [[i if real else NONE for i, real in row] for row in pairs]


def _refuse_other_positions(positions: Any, rows: list[list[int]]) -> None:
    """Refuse positions other than those that the tokens are run at, `0, 1, ...` without padding."""
    if positions is None:
        return
    given = _lists(positions) or []
    given = given * len(rows) if len(given) == 1 else given
    own = [[place for place, i in zip(at, row) if i != NONE] for at, row in zip(given, rows)]
    if list(map(len, given)) != list(map(len, rows)) or any(at != [*range(len(at))] for at in own):
        raise InputError(
            "position_ids must be 0, 1, ... without padding, as tokens are run, got others"
        )


def segments_of(encoding: Mapping[str, Any]) -> Int[Tensor, "batch pos"] | None:
    """Which text each token belongs to, in the order of `Model.to_tokens`; None if all to one.

    Raises:
        InputError: If `token_type_ids` has not an entry for each of `input_ids`.
    """
    rows = _lists(encoding.get("token_type_ids", []))
    if not rows or not any(map(any, rows)):
        return None
    real = [[i != NONE for i in row] for row in encoded({**encoding, "token_type_ids": []})]
    if list(map(len, real)) != list(map(len, rows)):
        raise InputError("token_type_ids must have an entry for each of input_ids")
    kept = [torch.tensor(row)[torch.tensor(there)] for row, there in zip(rows, real, strict=True)]
    return pad_sequence(kept, batch_first=True)


def without_padding(row: list[int], index: int) -> list[int]:
    """The tokens between the padding (-1) at the ends of row number `index`.

    Raises:
        InputError: If there is padding between them.
    """
    real = [place for place, i in enumerate(row) if i != NONE]
    tokens = row[real[0] : real[-1] + 1] if real else []
    if NONE in tokens:
        raise InputError(
            f"padding must be at the ends of a row, got it between tokens in row {index}"
        )
    return tokens


def to_run(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """The ids to run for rows padded on the right: padding is run as the first token of its row.

    So no id is run that no row has, whatever the model would make of it.

    Example:
        >>> to_run(torch.tensor([[5, 6], [7, -1]])).tolist()
        [[5, 6], [7, 7]]
    """
    return torch.where(tokens == NONE, tokens[:, :1], tokens)


def rows_by_length(
    *texts: Int[Tensor, "batch _"] | None,
) -> dict[tuple[int, ...], list[int]]:
    """The rows that are as long as each other in every text: run together they need no padding.

    Args:
        *texts: Token ids, padded with -1 on the right; None for a text that there is not.

    Returns:
        The numbers of the rows, by how many tokens they have in each text.

    Example:
        >>> rows_by_length(torch.tensor([[5, 6], [7, -1], [8, 9]]))
        {(2,): [0, 2], (1,): [1]}
    """
    lengths = [(text != NONE).sum(-1).tolist() for text in texts if text is not None]
    found: dict[tuple[int, ...], list[int]] = {}
    for row, sizes in enumerate(zip(*lengths, strict=True)):
        found.setdefault(sizes, []).append(row)
    return found


def _lists(values: Any) -> list[list[Any]] | None:
    """Rows as lists, one row if `values` is flat; None if it is no such thing.

    Raises:
        InputError: If it is a tensor without numbers at hand: sparse, nested, or on no device.
    """
    rows = _listed(values)
    if not isinstance(rows, list | tuple):
        return None
    rows = [_listed(row) for row in rows]
    if rows and isinstance(rows[0], list | tuple):
        return [list(row) if isinstance(row, list | tuple) else [row] for row in rows]
    return [rows] if rows else []


def _listed(values: Any) -> Any:
    """A tensor or an array as a list, and anything else as it is."""
    try:
        return values.tolist() if hasattr(values, "tolist") else values
    except Exception as error:
        raise InputError(
            "inputs must be ids in a plain tensor, which can be listed, got a"
            f" {type(values).__name__}: {told(error)}"
        ) from error
