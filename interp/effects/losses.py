"""Next-token losses in nats, and the queries of a probe over which they are averaged."""

from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from interp.kinds.probes import Probe


def next_token_losses(
    logits: Float[Tensor, "batch pos id"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch query"]:
    """The loss of each next token, in nats, in float32; the last position has none."""
    guesses = rearrange(logits[:, :-1], "batch query id -> (batch query) id").float()
    answers = rearrange(tokens[:, 1:], "batch query -> (batch query)").to(guesses.device)
    losses = cross_entropy(guesses, answers, reduction="none")
    return rearrange(losses, "(batch query) -> batch query", batch=len(tokens))


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
