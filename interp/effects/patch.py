"""`patch`: does a head's output from clean prompts bring the answer back in corrupted ones?"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.ablate import AnyHead, chosen_heads
from interp.effects.head_effects import HeadEffects, ids_as_text, record_of
from interp.effects.losses import interval
from interp.effects.metrics import Metric, bound
from interp.effects.replaced import Prompts, change_to
from interp.effects.tasks import paired_tokens
from interp.errors import InputError, Seed, Whole, checked, quoted
from interp.kinds.targets import NONE
from interp.models import load_model

LOG = logging.getLogger("interp")


@checked
def patch(
    model: Any,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    what: str = "z",
    *,
    heads: AnyHead | Sequence[AnyHead] | None = None,
    position: Whole | None = None,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> HeadEffects:
    """The effect of putting each head's output in clean prompts into the run of corrupted ones.

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
        what: Activation that is patched: `z`, a head's output before W_O.
        heads: Heads to patch; all if left out.
        position: Token whose output is patched, from the end of each prompt if negative (-1 is the
            last token); all if left out.
        seed: Seed of the intervals.
        progress: Callback, called with (heads done, heads in all).

    Returns:
        The normalised effect of each head, with a 95 % interval over the pairs (bootstrap), and the
        range of the other heads of its layer.

    Raises:
        InputError: If the prompts of a pair differ in their number of tokens, or the metric does
            not differ between the clean and the corrupted run.

    Example:
        >>> import torch
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> clean, corrupted = torch.tensor([[0, 5, 6, 7, 5]]), torch.tensor([[0, 5, 9, 7, 5]])
        >>> metric = interp.logit_difference(right=[6], wrong=[9])
        >>> effects = interp.patch(toy, clean, corrupted, metric)
        >>> effects.strongest(1)["name"].item()  # The induction head.
        'L1H5'
    """
    if what != "z":
        raise InputError(f"what must be z, got {quoted(what)}")
    model = load_model(model)
    known, chosen = chosen_heads(model, heads)
    ids = paired_tokens(model, clean, corrupted)
    _check_position(ids[1], position)
    metric = bound(metric, model)
    source, prompts = (Prompts(model, tokens, metric) for tokens in ids)
    before, outputs = prompts.metric(), [group.z for group in source.groups]
    whole = source.metric() - before
    _check_whole(whole, seed)
    changes = [change_to(outputs, [head]) for head in known]
    after = prompts.replaced(changes, position=position, progress=progress)
    made_by = record_of(
        model,
        metric,
        *(f"{what} of the clean run", "share of the clean run: 0 corrupted, 1 clean"),
        seed=seed,
        position=position,
        clean_mean=float((whole + before).mean()),
        corrupted_mean=float(before.mean()),
        clean=ids_as_text(ids[0]),
        prompts=ids_as_text(ids[1]),
    )
    return HeadEffects.of(known, chosen, after - before, whole, seed, made_by)


def _check_position(tokens: Int[Tensor, "batch pos"], position: int | None) -> None:
    shortest = int((tokens != NONE).sum(-1).min())
    if position is not None and not -shortest <= position < shortest:
        raise InputError(
            f"position must be from {-shortest} to {shortest - 1}, as the shortest prompt has"
            f" {shortest} tokens, got {position}"
        )


def _check_whole(whole: Float[Tensor, " batch"], seed: int) -> None:
    """Refuse or warn about a difference that effects cannot be divided by."""
    if not whole.mean():
        raise InputError(
            "metric must differ between clean and corrupted prompts, got no difference"
        )
    low, high = interval(whole[:, None], seed) if len(whole) > 1 else (1.0, 1.0)
    if low <= 0 <= high:
        LOG.warning(
            "the metric differs between clean and corrupted prompts by %.2g only, 95 %% interval"
            " %.2g to %.2g: effects are divided by this difference and mean little",
            *(whole.mean(), low, high),
        )
