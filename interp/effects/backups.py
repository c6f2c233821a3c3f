"""`find_backups`: heads that do the work of an earlier head once that is gone."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.effects.ablate import heads_in, parsed_heads
from interp.effects.ablate_map import Heads, check_how, without
from interp.effects.head_effects import HeadEffects, ids_as_text, row_of
from interp.effects.metrics import Metric, bound, name_of, record_of
from interp.effects.replaced import Prompts
from interp.errors import InputError, Seed, checked, quoted
from interp.heads import AnyHead
from interp.models import load_model


@checked
def find_backups(
    model: Any,
    prompts: Any,
    metric: Metric,
    how: str = "mean",
    *,
    given: AnyHead | Collection[AnyHead] | None = None,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """For each head, the earlier head without which it matters most: which head backs up which.

    With E of `interp.ablate`, the score of a head h is how much larger its effect is, in size, once
    a head s of an earlier layer is out, for the s that makes it largest:

        ``max over s of abs(E(h and s) - E(s)) - abs(E(h))``

    A head that only works together with s scores below 0 for that s. It finds a backup (McGrath et
    al. 2023, arXiv 2307.15771) without a guess which head it backs up, and takes a run for each
    pair of heads of different layers.

    Args:
        model: Model, as for `interp.ablate`.
        prompts: Prompts, as for `interp.ablate`.
        metric: Metric, as for `interp.patch`.
        how: Replacement of a head's output, as for `interp.ablate`.
        given: Heads that may be the earlier one; all if left out.
        seed: Seed of the intervals and of the draw for `resample`.
        progress: Callback, called with (sets done, sets in all).

    Returns:
        The score of each head that has an earlier one, in the metric's unit, with a 95 % interval
        over the prompts (bootstrap) and the band of an ordinary head; `given`, the earlier head,
        and `alone`, the effect of the head by itself. The interval does not include the choice of
        the earlier head, which is the best on these prompts.

    Raises:
        InputError: If an argument is wrong.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> metric, prompts = interp.logit_difference(right=[6], wrong=[9]), [[0, 5, 6, 7, 5]]
        >>> found = interp.find_backups(toy, prompts, metric, how="zero", given="L0H3")
        >>> bool(found.to_frame()["effect"].max() < 0.1)  # There is no backup.
        True
    """
    check_how(how)
    model = load_model(model)
    _, known, _, name = heads_in(model)
    first = known if given is None else parsed_heads("given", given, known, name)
    pairs = {head: [s for s in first if s.layer < head.layer] for head in known}
    pairs = {head: earlier for head, earlier in pairs.items() if earlier}
    if not pairs:
        raise InputError(f"given must have a head before another layer, got {quoted(first)}")
    metric = bound(metric, model)
    runs = Prompts(model, model.to_tokens(prompts), metric)
    every = [Heads([head]) for head in known]
    every += [Heads([head, s]) for head, earlier in pairs.items() for s in earlier]
    found = without(runs, every, how, seed, progress)
    rows, changes = [], []
    for head, earlier in pairs.items():
        alone = found[Heads([head])]
        sizes = [_size(found[Heads([head, s])] - found[Heads([s])]) for s in earlier]
        at = max(range(len(sizes)), key=lambda i: float(sizes[i].mean()))
        changes.append(sizes[at] - _size(alone))
        rows.append(row_of(head, given=str(earlier[at]), alone=float(alone.mean())))
    made_by = record_of(
        model,
        metric,
        "z replaced, of each head and of the earlier head without which it matters most",
        f"effect on {name_of(metric)} in size without that head, minus the effect alone",
        how=how,
        seed=seed,
        mean=float(runs.before.mean()),
        prompts=ids_as_text(runs.tokens),
    )
    changed = torch.stack(changes)
    return HeadEffects.of(rows, changed, torch.ones_like(runs.before), seed, made_by)


def _size(change: Float[Tensor, " prompt"]) -> Float[Tensor, " prompt"]:
    """The changes of prompts with the sign that makes their mean positive."""
    return change * change.mean().sign()
