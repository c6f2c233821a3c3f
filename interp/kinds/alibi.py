"""ALiBi: scores that fall with distance, and which heads are local by that alone.

Press et al. 2021 (arXiv 2108.12409): a score loses `slope * distance`, with a slope of its own for
each head of a layer. Where tokens are all alike, attention is then geometric: what lies a token
farther back gets `exp(-slope)` as much.
"""

import math
from dataclasses import replace

from jaxtyping import Float, Int
from torch import Tensor

from interp.kinds.kind import FORCED_WINDOW, LABELS
from interp.kinds.labels import HeadLabel, excess
from interp.kinds.scores import Thresholds


def share_within(
    slope: float, width: int, seen: Int[Tensor, "*queries"]
) -> Float[Tensor, "*queries"]:
    """Share of attention that a slope alone puts on the last `width` positions, from 0 to 1.

    Args:
        slope: Above 0.
        width: In tokens, the query's own position among them.
        seen: How many keys each query has in sight.

    Example:
        >>> from torch import tensor
        >>> share_within(math.log(2), 1, tensor([1, 2]))
        tensor([1.0000, 0.6667])
    """
    falls = math.exp(-slope)
    return (1 - falls ** seen.clamp(max=width).float()) / (1 - falls ** seen.float())


def name_what_slopes_do(
    verdict: HeadLabel, slope: float, seen: Int[Tensor, " query"], thresholds: Thresholds
) -> HeadLabel:
    """The verdict with `local window (by architecture)` where the slope alone earns that label.

    Args:
        verdict: On a head of a model with ALiBi.
        slope: Of that head.
        seen: How many keys the queries had in sight that it was judged by.
        thresholds: What decides.
    """
    local = LABELS["local_window"]
    if local not in verdict.labels:
        return verdict
    alone = float(share_within(slope, thresholds.window_width, seen).mean())
    if excess(alone, verdict.chance["local_window"]) < thresholds.local_window:
        return verdict
    named = (FORCED_WINDOW if label == local else label for label in verdict.labels)
    labels = tuple(dict.fromkeys(named))  # A window may have forced it too.
    margin = None if verdict.label == local else verdict.margin
    return replace(verdict, label=labels[0], labels=labels, margin=margin)
