"""Labels from attention patterns of any source: `classify_heads`."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

import torch

from interp.errors import InputError, truth, whole
from interp.kinds.labels import HeadLabel, judge_layer
from interp.kinds.scores import Thresholds, as_thresholds, ask, score_layer
from interp.kinds.targets import NONE, Blocks
from interp.patterns.read import take
from interp.patterns.tensor import as_numbers, as_special, check_pattern


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

    Args:
        patterns: Attention after the softmax, from any source that `interp.read_patterns`
            takes: arrays `[head, query, key]`, `[batch, head, query, key]` or
            `[layer, batch, head, query, key]`, or one `[batch, head, query, key]` per layer; a
            file of them; what a library returned. One layer at a time is in memory as float32.
        tokens: The token ids that were run, `[pos]` or `[batch, pos]`, -1 for padding, as
            there; may be left out where the patterns carry them.
        special: Ids of special tokens (BOS, EOS, separators). The row's first token needs no
            listing. If left out, what `interp.attention_patterns` returned knows them.
        causal: Whether no query looks ahead. If left out, what `interp.attention_patterns`
            returned knows it, and other patterns are causal. With False the kinds are those of
            bidirectional models: next token too, copies and a local window on both sides, sinks
            on any special token, and no induction.
        windows: How far back each layer may look (None: no limit), if the model has windows. If
            left out, what `interp.attention_patterns` returned knows them, and other patterns
            have none. Layers that attend within blocks of fixed places have
            `interp.kinds.targets.Blocks`.
        layers: The layers' own numbers; `0, 1, ...` if left out.
        thresholds: What decides; `Thresholds()` if left out.
        learned_sinks: Whether part of the attention may go to a learned sink that is no key, as
            in gpt-oss, so that rows sum to less than 1; scores are then shares of all attention,
            that part among it. If left out, what `interp.attention_patterns` returned knows it,
            and other patterns have none.

    Returns:
        One verdict per head, by layer and head. Kinds that these tokens cannot judge
        (induction without a repeat, anything on two tokens) are absent from its scores.

    Raises:
        InputError: If shapes disagree, a real query's row holds NaN, has negative entries,
            looks ahead (unless `causal` is False) or does not sum to 1 (with `learned_sinks`:
            to no more), the patterns are those of one text's attention to another, or another
            argument is not what it must be.

    Example:
        >>> tokens = [0, 11, 12, 13, 14, 15, 16, 17, 18, 19]
        >>> previous = torch.eye(10).roll(-1, 1)
        >>> previous[0] = torch.eye(10)[0]
        >>> classify_heads(previous[None], tokens)[0].label
        'previous token'
    """
    taken = take(patterns, tokens)
    if taken.stack == "cross":
        raise InputError(
            "patterns must be a text's attention to itself, got cross-attention: its keys are"
            " another text's, and no kind of head is defined there"
        )
    learned_sinks = truth(
        "learned_sinks", taken.learned_sinks if learned_sinks is None else learned_sinks
    )
    causal = truth("causal", taken.causal if causal is None else causal)
    special = as_special(taken.special if special is None else special)
    ids, stack = taken.tokens, taken.arrays
    numbers = as_numbers(taken.numbers if layers is None else layers)
    if len(numbers) != len(stack):
        raise InputError(f"layers must name all {len(stack)} layers, got {len(numbers)} numbers")
    windows = as_windows(taken.windows if windows is None else windows, len(stack))
    thresholds = as_thresholds(thresholds)

    labels = []
    for layer, pattern, window in zip(numbers, stack, windows, strict=True):
        pattern = pattern.detach().to(torch.float32)
        check_pattern(
            pattern,
            ids,
            where=f"layer {layer}",
            window=window,
            learned_sinks=learned_sinks,
            causal=causal,
        )
        questions = ask(ids, special=special, window=window, thresholds=thresholds, causal=causal)
        scores = score_layer(pattern, questions, thresholds).measured(thresholds.min_queries)
        local = questions.fit & (questions.keys["local_window"] != NONE).any(-1)
        labels += judge_layer(
            layer,
            scores,
            ids,
            thresholds,
            special=special,
            causal=causal,
            window=window,
            texts=taken.texts if special else None,
            alibi_slopes=taken.alibi_slopes,
            seen=questions.seen[local],
        )
    return labels


def as_windows(windows: Any, number: int) -> list[int | None]:
    """How far back each of `number` layers may look; all they like if `windows` is None.

    Raises:
        InputError: If there is not one entry for each layer, in order, or one is neither None nor
            a whole number from 1 to 2,147,483,647.
    """
    if windows is None:
        return [None] * number
    if isinstance(windows, str | Mapping | Set) or not isinstance(windows, Iterable):
        raise InputError(f"windows must be a list of one entry a layer, got {windows!r}")
    listed = list(windows)
    if len(listed) != number:
        raise InputError(
            f"windows must have one entry for each of {number} layers, got {len(listed)}"
        )
    for one in listed:
        if one is not None:
            whole("windows", one, least=1, most=2**31 - 1)
    return [one if one is None or isinstance(one, Blocks) else int(one) for one in listed]
