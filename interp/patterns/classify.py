"""Labels from attention patterns of any source: `classify_heads`."""

from collections.abc import Collection, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter

from interp.errors import InputError, Whole, checked, validated
from interp.kinds.builtin import as_kinds
from interp.kinds.labels import NEAR, NEAR_IN_BFLOAT16, NOT_FINITE, HeadLabel, judge_layer
from interp.kinds.scores import Thresholds, as_thresholds, ask, score_layer
from interp.kinds.targets import NONE, Blocks, aligned
from interp.patterns.positions import counted_positions
from interp.patterns.read import take
from interp.patterns.tensor import NO_HEAD, as_numbers, check_pattern, items

_IDS = TypeAdapter(frozenset[Annotated[Whole, Field(ge=0)]])
_WIDTHS = TypeAdapter(list[Annotated[Whole, Field(ge=1, lt=2**31)] | None])


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
    positions: Any = None,
    kinds: Any = None,
    texts: Sequence[Sequence[str]] | None = None,
) -> list[HeadLabel]:
    """Label every head from attention patterns of any source.

    Where an argument is left out, what `interp.attention_patterns` returned knows it.

    Args:
        patterns: Attention after the softmax, from any source that `interp.read_patterns`
            accepts, such as an array `[layer, batch, head, query, key]`. One layer at a time is
            in memory as float32.
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
        positions: The positions that count, as queries: a slice, numbers from the first token of a
            row, or a bool for each token, for all rows or in a list of one for each. By default all
            but those of a chat template, which `all` counts too.
        kinds: Kinds to score: names, `default`, `all`, kinds of your own (see `interp.kind`), or
            a list of these. By default the six of causal models.
        texts: Text of each token, a list a row without padding, for kinds that read it.

    Returns:
        One label per head, by layer and head. Kinds that these tokens cannot judge
        (induction without a repeat, anything on two tokens) are absent from its scores. A head
        with NaN or infinity among its weights is `not finite`, without scores.

    Raises:
        InputError: If the patterns are no attention over the tokens (see `read_patterns`), or are
            one text's attention to another.

    Example:
        >>> tokens = [0, 11, 12, 13, 14, 15, 16, 17, 18, 19]
        >>> previous = torch.eye(10).roll(-1, 1)
        >>> previous[0] = torch.eye(10)[0]
        >>> classify_heads(previous[None], tokens)[0].label
        'previous token'
    """
    ran = take(patterns, tokens)
    if ran.stack == "cross":  # No kind of head is defined there.
        raise InputError("patterns must be a text's attention to itself, got cross-attention")
    learned_sinks = ran.learned_sinks if learned_sinks is None else learned_sinks
    causal = ran.causal if causal is None else causal
    special = validated("special", items(ran.special if special is None else special), _IDS)
    numbers = as_numbers(ran.layers if layers is None else layers)
    count = len(ran.arrays)
    given: Any = ran.windows if windows is None else windows
    given = [None] * count if given is None else items(given)
    widths = validated("windows", given, _WIDTHS)
    if not count == len(numbers) == len(widths):
        got = f"{len(numbers)} and {len(widths)}"
        raise InputError(f"layers and windows must have an entry for each of {count}, got {got}")
    windows = [one if isinstance(one, Blocks) else width for one, width in zip(given, widths)]
    thresholds = as_thresholds(thresholds)
    counted = counted_positions(positions, ran.tokens, ran.template)
    counted[:, : ran.first_query] = False
    apart = None if ran.template is None else ran.template.to(counted.device) & ~counted

    chosen, texts = as_kinds(kinds), ran.texts if texts is None else texts
    missing = [kind.name for kind in chosen.values() if kind.takes("texts") and texts is None]
    if missing:
        raise InputError(f"texts must be given for kinds that read them, {', '.join(missing)}")
    if texts is not None:
        lengths = (ran.tokens != NONE).sum(-1).tolist()
        if list(map(len, texts)) != lengths:
            raise InputError(f"texts must be a list for each row, of {lengths} texts")
    read = None if texts is None else aligned(texts, ran.tokens)

    labels = []
    for layer, pattern, window in zip(numbers, ran.arrays, windows, strict=True):
        pattern = pattern.detach().to(torch.float32)
        finite = check_pattern(
            pattern,
            ran.tokens,
            where=f"layer {layer}",
            window=window,
            learned_sinks=learned_sinks,
            causal=causal,
            first_query=ran.first_query,
        )
        context = {"special": special, "window": window, "causal": causal}
        context |= {"counted": counted, "apart": apart, "kinds": chosen}
        questions = ask(ran.tokens, thresholds=thresholds, texts=read, **context)
        scores = score_layer(pattern, questions, thresholds).measured(thresholds.min_queries)
        local = questions.keys.get("local_window")
        seen = None if local is None else questions.seen[questions.fit & (local != NONE).any(-1)]
        judged = judge_layer(
            layer,
            scores,
            ran.tokens,
            thresholds,
            **context,
            near=NEAR_IN_BFLOAT16 if ran.run_in == "bfloat16" else NEAR,
            texts=texts if special else None,
            alibi_slopes=ran.alibi_slopes,
            seen=seen,
        )
        labels += [
            head if whole else HeadLabel(head.head, NOT_FINITE, (NOT_FINITE,), {}, {})
            for head, whole in zip(judged, finite.tolist(), strict=True)
        ]
    if all(head.label == NOT_FINITE for head in labels):
        raise InputError(NO_HEAD)
    return labels
