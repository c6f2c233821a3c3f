"""`attribute`: the maps of `interp.patch` from gradients, for all heads in a few passes."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.effects.head_effects import HeadEffects
from interp.effects.metrics import Metric
from interp.effects.pairs import Pairs
from interp.errors import Count, InputError, Seed, Whole, checked, quoted
from interp.heads import AnyHead

METHODS = ("patching", "integrated")
"""Where `attribute` takes gradients."""


@checked
def attribute(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    method: str = "patching",
    what: str = "z",
    *,
    heads: AnyHead | Sequence[AnyHead] | None = None,
    position: Whole | Literal["each"] | None = None,
    reverse: bool = False,
    steps: Count = 3,
    top: Whole = 10,
    seed: Seed = 0,
) -> HeadEffects:
    """The maps of `interp.patch` to first order, from gradients, and how far they agree with it.

    An effect is what patching changes in a head's output z, times the gradient of the metric there,
    `sum (z' - z) . dm/dz`, normalised as in `interp.patch` (attribution patching: Nanda 2023). For
    queries and keys z' has the exact softmax, which is far from linear (AtP*: Kramar et al. 2024,
    arXiv 2403.00745): `sum (A' - A) . dm/dA` is the same number. For values and patterns z' is
    linear in them, so that this is attribution patching of the values or the pattern.

    Args:
        model: Model, as for `interp.patch`, run by transformers.
        clean: Prompts, as for `interp.patch`.
        corrupted: Prompts with as many tokens each.
        metric: Metric, as for `interp.patch`, differentiable by the logits.
        method: `patching`, the gradient in the run that is patched: two forward passes and one
            forward and backward give all heads; or `integrated`, its mean over `steps` runs between
            both, for each of which the stream that enters the first layer is a mixture (integrated
            gradients: Sundararajan et al. 2017, arXiv 1703.01365; EAP-IG: Hanna et al. 2024,
            arXiv 2403.17806): a forward and backward pass for each.
        what: Activation that is patched, as for `interp.patch`.
        heads: Heads of the map; all if left out.
        position: As for `interp.patch`.
        reverse: As for `interp.patch`.
        steps: Runs of `integrated`, at the shares `(i + 1/2) / steps` of the way.
        top: Number of largest effects that are measured exactly too; 0: none. Not part of the cost
            above.
        seed: Seed of the intervals.

    Returns:
        The effects, with intervals over the pairs and the band of an ordinary head. The column
        `exact` is the effect by `interp.patch` of the `top` rows, and `made_by["agreement"]` the
        correlation of both (Pearson, and Spearman of their ranks).

    Raises:
        InputError: As for `interp.patch`, or if there is no gradient.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> clean, corrupted = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 5, 9, 7, 5]])
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.attribute(toy, clean, corrupted, metric, top=3)
        >>> effects.strongest(1)[["name", "effect", "exact"]].round(2).values.tolist()  # Norms.
        [['L1H5', 0.82, 1.0]]
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {quoted(method)}")
    options = {"heads": heads, "position": position, "reverse": reverse, "seed": seed}
    pairs = Pairs(model, clean, corrupted, metric, what, **options)
    shares = [0.0] if method == "patching" else [(i + 0.5) / steps for i in range(steps)]
    gradients = pairs.target.gradients(pairs.source, shares)
    groups = pairs.target.groups
    rows, effects = [], []
    for some, changes in pairs.changes():
        rows += some
        for change in changes:
            effects.append(torch.zeros(len(pairs.whole), dtype=torch.double))
            for head, outputs in change.items():
                for group, gradient, new in zip(groups, gradients, outputs, strict=True):
                    old, towards = (x[head.layer][:, :, head.head] for x in (group.z, gradient))
                    effect = ((new - old) * towards).sum((1, 2))
                    effects[-1][group.rows] += effect.double().cpu()
    changed, kept = torch.stack(effects), pairs.kept(rows)
    order = changed.mean(1).abs().where(torch.tensor(kept), -1).argsort(descending=True)
    best = set(order[: min(top, sum(kept))].tolist())
    exact = torch.full((len(rows),), torch.nan, dtype=torch.double)
    number = itertools.count()
    for _, changes in pairs.changes() if best else ():
        picked = {index: change for change, index in zip(changes, number) if index in best}
        if picked:
            after = pairs.target.replaced([*picked.values()])
            exact[[*picked]] = (after - pairs.before).mean(1) / pairs.whole.mean()
    both = torch.stack([changed.mean(1) / pairs.whole.mean(), exact])[:, [*best]]
    ranks = both.argsort(1).argsort(1).double()
    agreement = {
        "heads": len(best),
        "pearson": _correlation(both),
        "spearman": _correlation(ranks),
    }
    made = {"method": method, "agreement": agreement}
    if method == "integrated":
        made["steps"] = steps
    found = pairs.effects(rows, changed, **made)
    return replace(found, frame=found.frame.assign(exact=exact[torch.tensor(kept)].numpy()))


def _correlation(both: Float[Tensor, "two row"]) -> float | None:
    """Pearson's correlation of two rows; None if one of them does not vary."""
    varies = both.shape[1] > 1 and (both != both[:, :1]).any(1).all()
    return float(torch.corrcoef(both)[0, 1]) if varies else None
