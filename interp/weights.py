"""What weights say by themselves: so far, whether a head copies what it attends to."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


def copying_scores(
    W_V: Float[Tensor, "head d_model d_head"],
    W_O: Float[Tensor, "head d_head d_model"],
    W_UE: Float[Tensor, "d_model d_model"],
) -> Float[Tensor, " head"]:
    """OV copying score: sum of the eigenvalues of `W_E W_V W_O W_U` over the sum of their sizes.

    1 if attending to a token raises that token's own logit along every eigenvector, -1 if it
    lowers it, about 0 for a random matrix (Elhage et al. 2021, "Summarizing OV/QK matrices").
    It is a weak witness: heads that push the answer down may score high too, since what they
    attend to at work is no bare embedding.

    The `[vocab, vocab]` matrix is never made: its nonzero eigenvalues are those of the
    `[d_head, d_head]` matrix `W_O (W_U W_E) W_V`, the same factors in a ring.

    Args:
        W_V: Values, the gain of the norm before them folded in; one for every query head.
        W_O: Outputs.
        W_UE: `W_U W_E`, the gain of the final norm folded in; W_U less its mean over the
            vocabulary, if what is added to all logits alike is to say nothing.

    Returns:
        In [-1, 1].

    Example:
        >>> W = torch.eye(2)[None]
        >>> copying_scores(W, W, torch.eye(2)), copying_scores(W, -W, torch.eye(2))
        (tensor([1.]), tensor([-1.]))
    """
    core = einsum(W_O, W_UE, W_V, "h i d, d e, h e j -> h i j")
    values = torch.linalg.eigvals(core.double().cpu())
    return (values.real.sum(-1) / values.abs().sum(-1)).float()
