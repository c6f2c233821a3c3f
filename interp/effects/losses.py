"""Next-token losses in nats, and the queries of a probe over which they are averaged."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from interp.kinds import evidence
from interp.kinds.mass import Tally
from interp.kinds.probes import Probe


def next_token_losses(
    logits: Float[Tensor, "batch pos id"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch query"]:
    """The loss of each next token, in nats, in float32; the last position has none."""
    guesses, answers = logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].to(logits.device)
    return cross_entropy(guesses, answers.flatten(), reduction="none").view(answers.shape)


def copy_queries(probe: Probe) -> dict[str, Bool[Tensor, "row query"]]:
    """The queries of a probe of repeats that count in each loss, without the last position.

    - `second_copy`: queries that are repeats and whose next token is one too. Looking up what
      came next last time predicts these. The last query of the first copy is left out: its
      next token repeats, but nothing before it shows that.
    - `first_copy`: earlier queries whose next token is new. Nothing predicts these, and a head
      that only finds repeats does not matter here.
    """
    parts = {"second_copy": probe.parts["repeated"], "first_copy": probe.parts["random"]}
    return {name: queries[:, :-1] & queries[:, 1:] for name, queries in parts.items()}


def late_and_early(queries: int) -> tuple[slice, slice]:
    """The late queries (the last quarter of a row) and the early ones (its second eighth).

    Example:
        >>> late_and_early(128)
        (slice(96, 128, None), slice(16, 32, None))
    """
    return slice(queries * 3 // 4, queries), slice(queries // 8, queries // 4)


def interval(values: Float[Tensor, "row query"], seed: int = 0) -> list[float]:
    """The middle 95 % of the means of `values` over 2,000 draws of rows with replacement."""
    total = values.double().sum(1, keepdim=True)
    queries = torch.full((len(values),), values.shape[1])
    tally = Tally(total, torch.zeros_like(total), queries)
    return evidence.interval(tally, seed=seed)[:, 0].tolist()
