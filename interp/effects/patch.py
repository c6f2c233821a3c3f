"""`patch`: what an activation of each head in clean prompts does in the run of corrupted ones."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from interp.effects.head_effects import HeadEffects
from interp.effects.metrics import Metric
from interp.effects.pairs import Pairs
from interp.errors import Seed, Whole, checked
from interp.heads import AnyHead


@checked
def patch(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    what: str = "z",
    *,
    heads: AnyHead | Sequence[AnyHead] | None = None,
    position: Whole | Literal["each"] | None = None,
    reverse: bool = False,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """The effect of putting each head's activation in clean prompts into the run of corrupted ones.

    An effect is normalised: 0 is the corrupted run and 1 the clean one,
    `(m(patched) - m(corrupted)) / (m(clean) - m(corrupted))`, with the mean over the pairs above
    and below. Heads are patched one at a time (activation patching: Vig et al. 2020,
    arXiv 2004.12265; Wang et al. 2022, arXiv 2211.00593).

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; causal.
        clean: Prompts, as for `Model.to_tokens`, such as those of a task.
        corrupted: Prompts with as many tokens each.
        metric: Metric, such as `interp.logit_difference(task)`, or any function of
            `(logits [batch, pos, id], tokens [batch, pos])` that returns `[batch]`.
        what: Activation that is patched: `z`, a head's output before W_O; `q`, `k` or `v`, its
            queries, keys or values as attention uses them (after norms and rotary positions); or
            `pattern`, its attention weights. All else in the layer stays that of the corrupted run.
            Query heads that share keys and values change together: `k` and `v` then have a row for
            each key-value head, such as `L5KV1`.
        heads: Heads to patch; all if left out. For `k` and `v` the key-value heads that they read.
        position: Token where the activation is patched, from the end of each prompt if negative
            (-1 is the last token); all at once if left out; or `each`, a row for each token, if
            prompts have the same number of tokens. Of a pattern it is the query's.
        reverse: Whether corrupted activations go into the clean run: 0 is then the clean run and 1
            the corrupted one.
        seed: Seed of the intervals.
        progress: Callback, called with (heads done, heads in all).

    Returns:
        The normalised effect of each head, with a 95 % interval over the pairs (bootstrap), and the
        band of an ordinary head.

    Raises:
        InputError: If the prompts of a pair differ in their number of tokens, the metric does not
            differ between the clean and the corrupted run, or `what` is not z and the model's
            attention cannot be streamed.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> clean, corrupted = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 5, 9, 7, 5]])
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.patch(toy, clean, corrupted, metric)
        >>> effects.strongest(1)["name"].item()  # The induction head.
        'L1H5'
        >>> by_token = interp.patch(toy, clean, corrupted, metric, "v", position="each")
        >>> by_token.matrix().loc["L1H5"].round(2).tolist()  # It reads what follows the first 5.
        [0.0, 0.0, 1.0, 0.0, 0.0]
    """
    options = {"heads": heads, "position": position, "reverse": reverse, "seed": seed}
    pairs = Pairs(model, clean, corrupted, metric, what, **options)
    rows, after = [], []
    for some, changes in pairs.changes():
        rows += some
        after.append(pairs.target.replaced(changes))
        if progress is not None:
            progress(pairs.known.index(some[-1].heads[-1]) + 1, len(pairs.known))
    return pairs.effects(rows, torch.cat(after) - pairs.before)
