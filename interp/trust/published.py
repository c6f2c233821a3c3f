"""The heads that papers name, and whether a scan agrees.

The table `published.csv` has one row for each head and kind: model, layer, head, kind,
condition, source. The kind is in the words of our labels: Wang et al.'s "negative name movers"
of GPT-2, which copy suppression explains (McDougall et al. 2023), push down the answer that
their attention finds, and are anti-induction heads here. A `condition` says that the head was
named for what it does on some prompts only; then no scan of ours can confirm or refute it.
GPT-2's L5H8 and L5H9 are of that sort: induction heads on prompts about indirect objects,
idle on random repeats.
"""

from importlib import resources

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.kind import ANTI_INDUCTION, LABELS
from interp.scan.columns import EFFECT
from interp.scan.table import HeadScan

INDUCTION = LABELS["induction"]

_ALSO_CALLED = {"gpt2-small": "gpt2"}


def published_heads(model: str | None = None) -> pd.DataFrame:
    """The published table: model, layer, head, kind, condition and source of each head.

    Args:
        model: Only this model's heads. Its hub id, with or without the owner.

    Raises:
        InputError: If nothing is published for the model.

    Example:
        >>> len(published_heads("openai-community/gpt2"))
        14
    """
    with resources.as_file(resources.files("interp.trust") / "published.csv") as path:
        table = pd.read_csv(path, encoding="utf-8", keep_default_na=False)
    if model is None:
        return table
    mine = table.loc[table["model"] == _plain(model)]
    if mine.empty:
        known = ", ".join(sorted(set(table["model"])))
        raise InputError(
            f"model must be one that papers name heads of ({known}), got {_plain(model)!r}"
        )
    return mine.reset_index(drop=True)


def compare_with_published(scan: HeadScan, model: str | None = None) -> pd.DataFrame:
    """Set what papers say about heads of a model beside what a scan of it says.

    Args:
        scan: Of that model.
        model: Which; if left out, the one that the scan says it was made from.

    Returns:
        One row for each published head. `name`, `kind`, `condition` and `source` are the
        paper's; `label` and `labels` the scan's; `score` the scan's mean attention mass on that
        kind's targets, in [0, 1] (for anti-induction those of induction);
        `induction_logit_effect` the scan's, in logits. `agrees` says whether the kind is among
        the labels. It is missing where the head was named under a condition, where the scan
        has no such head or could not measure it, and for anti-induction where the scan does
        not know the effect's sign.

    Raises:
        InputError: If nothing is published for the model, or none is named.
    """
    name = model or scan.made_by.get("model")
    if not name:
        raise InputError("model must be named: the scan does not say which it was made from")
    rows = []
    seen = {row["name"]: row for row in scan.frame.to_dict("records")}
    for paper in published_heads(name).to_dict("records"):
        head = str(Head(paper["layer"], paper["head"]))
        found = seen.get(head, {})
        score = found.get(_score_of(paper["kind"]), pd.NA)
        effect = found.get(EFFECT, pd.NA)
        known = not (pd.isna(score) or (paper["kind"] == ANTI_INDUCTION and pd.isna(effect)))
        labels = found.get("labels", [])
        rows.append(
            {
                "layer": paper["layer"],
                "head": paper["head"],
                "name": head,
                "kind": paper["kind"],
                "condition": paper["condition"],
                "label": found.get("label", ""),
                "labels": labels,
                "score": score,
                EFFECT: effect,
                "agrees": paper["kind"] in labels if known and not paper["condition"] else pd.NA,
                "source": paper["source"],
            }
        )
    types = {"score": "Float64", EFFECT: "Float64", "agrees": "boolean"}
    return pd.DataFrame.from_records(rows).astype(types)


def by_stripe_and_sign(
    stripe: Float[Tensor, "layer head"],
    effect: Float[Tensor, "layer head"],
    *,
    threshold: float,
    least_effect: float = 0.0,
) -> dict[str, list[Head]]:
    """Tell induction from anti-induction heads: attention finds the match, the effect its sign.

    Both kinds attend to what followed an earlier copy of the query's token. One raises the
    logit of the token it finds there, the other lowers it.

    Args:
        stripe: Mean attention mass on induction targets, in [0, 1].
        effect: Direct effect through that attention alone on the logit of the right next
            token, in logits. Its size shrinks with the number of layers.
        threshold: Least stripe of either kind.
        least_effect: The effect's size must be above this.

    Returns:
        The heads of each kind, the strongest stripe first; in neither are those that match
        without an effect.

    Example:
        >>> import torch
        >>> stripe, effect = torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[1.0, -1.0, 1.0]])
        >>> by_stripe_and_sign(stripe, effect, threshold=0.4)
        {'induction': [L0H0], 'anti-induction': [L0H1]}
    """
    matching = [Head(*where) for where in (stripe >= threshold).nonzero().tolist()]
    matching.sort(key=lambda head: -float(stripe[head]))
    return {
        INDUCTION: [head for head in matching if effect[head] > least_effect],
        ANTI_INDUCTION: [head for head in matching if effect[head] < -least_effect],
    }


def _score_of(kind: str) -> str:
    """The scan's column that measures a kind."""
    return (INDUCTION if kind == ANTI_INDUCTION else kind).replace(" ", "_")


def _plain(model: str) -> str:
    """A model's name as in the table: without the hub's owner and the format's suffix."""
    name = model.rsplit("/", 1)[-1].lower().removesuffix("-hf")
    return _ALSO_CALLED.get(name, name)
