"""Labels from attention patterns of any source: `classify_heads`."""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter

from interp.errors import InputError, Whole, checked, quoted, validated
from interp.kinds.labels import HeadLabel, judge_layer
from interp.kinds.scores import Thresholds, as_thresholds, ask, score_layer
from interp.kinds.targets import NONE, Blocks
from interp.patterns.read import take
from interp.patterns.tensor import as_numbers, as_special, check_pattern

_WIDTH = TypeAdapter(Annotated[Whole, Field(ge=1, lt=2**31)])


@checked
def classify_heads(
    patterns: Any,
    tokens: Any = None,
    *,
    special: Collection[int] | None = None,
    causal: bool | None = None,
    windows: Sequence[int | None] | None = None,
    layers: Sequence[int] | None = None,
    thresholds: Thresholds | None = None,
    learned_sinks: bool | None = None,
) -> list[HeadLabel]:
    """Label every head from attention patterns of any source.

    Where an argument is left out, what `interp.attention_patterns` returned knows it.

    Args:
        patterns: Attention after the softmax, from any source that `interp.read_patterns`
            accepts: arrays `[head, query, key]`, `[batch, head, query, key]` or
            `[layer, batch, head, query, key]`, or one `[batch, head, query, key]` per layer; a
            file of them; what a library returned. One layer at a time is in memory as float32.
        tokens: Token ids that were run, `[pos]` or `[batch, pos]`, -1 for padding.
        special: Ids of special tokens (BOS, EOS, separators). The first token of a row is
            always treated as special.
        causal: Whether no query looks ahead; True for other sources. With False the kinds are
            those of bidirectional models: next token too, copies and a local window on both
            sides, sinks on any special token, and no induction.
        windows: How far back each layer may look (None: no limit). Layers that attend within
            blocks of fixed places have `interp.kinds.targets.Blocks`.
        layers: Numbers of the layers; `0, 1, ...` for sources that do not number them.
        thresholds: Thresholds of the labels; `Thresholds()` if left out.
        learned_sinks: Whether attention may go to a learned sink that is no key, as in gpt-oss,
            so that rows sum to less than 1; scores are then shares of all attention. False for
            other sources.

    Returns:
        One label per head, by layer and head. Kinds that these tokens cannot judge
        (induction without a repeat, anything on two tokens) are absent from its scores.

    Raises:
        InputError: If shapes disagree, a real query's row holds NaN, has negative entries,
            looks ahead (unless `causal` is False) or does not sum to 1 (with `learned_sinks`:
            to no more), or the patterns are one text's attention to another.

    Example:
        >>> tokens = [0, 11, 12, 13, 14, 15, 16, 17, 18, 19]
        >>> previous = torch.eye(10).roll(-1, 1)
        >>> previous[0] = torch.eye(10)[0]
        >>> classify_heads(previous[None], tokens)[0].label
        'previous token'
    """
    ran = take(patterns, tokens)
    if ran.stack == "cross":
        raise InputError(
            "patterns must be a text's attention to itself, got cross-attention, where no kind of"
            " head is defined"
        )
    learned_sinks = ran.learned_sinks if learned_sinks is None else learned_sinks
    causal = ran.causal if causal is None else causal
    special = as_special(ran.special if special is None else special)
    numbers = as_numbers(ran.layers if layers is None else layers)
    if len(numbers) != len(ran.arrays):
        raise InputError(f"layers must name all {len(ran.arrays)} layers, got {len(numbers)}")
    windows = as_windows(ran.windows if windows is None else windows, len(numbers))
    thresholds = as_thresholds(thresholds)

    labels = []
    for layer, pattern, window in zip(numbers, ran.arrays, windows, strict=True):
        pattern = pattern.detach().to(torch.float32)
        check_pattern(
            pattern,
            ran.tokens,
            where=f"layer {layer}",
            window=window,
            learned_sinks=learned_sinks,
            causal=causal,
        )
        questions = ask(
            ran.tokens, special=special, window=window, thresholds=thresholds, causal=causal
        )
        scores = score_layer(pattern, questions, thresholds).measured(thresholds.min_queries)
        local = questions.fit & (questions.keys["local_window"] != NONE).any(-1)
        labels += judge_layer(
            layer,
            scores,
            ran.tokens,
            thresholds,
            special=special,
            causal=causal,
            window=window,
            texts=ran.texts if special else None,
            alibi_slopes=ran.alibi_slopes,
            seen=questions.seen[local],
        )
    return labels


def as_windows(windows: Any, number: int) -> list[int | None]:
    """How far back each of `number` layers may look; no limits if `windows` is None.

    Raises:
        InputError: If there is not one entry for each layer, or one is neither None nor a whole
            number from 1 to 2,147,483,647.
    """
    if windows is None:
        return [None] * number
    listed = [*windows] if isinstance(windows, Iterable) else []
    if len(listed) != number:
        got = quoted(windows)
        raise InputError(f"windows must have one entry for each of {number} layers, got {got}")
    widths = [None if one is None else validated("windows", one, _WIDTH) for one in listed]
    return [one if isinstance(one, Blocks) else width for one, width in zip(listed, widths)]
