"""The heads that papers describe, and whether a scan agrees.

The table `published.csv` has one row for each head and kind: model, layer, head, kind,
condition, source. The kind is one of our labels: Wang et al.'s "negative name movers" of GPT-2,
which copy suppression explains (McDougall et al. 2023), lower the logit of the answer that
their attention finds, and are anti-induction heads here. A `condition` says that the paper
describes the head on some prompts only; then a scan can neither confirm nor refute it. GPT-2's
L5H8 and L5H9 are examples: induction heads on prompts about indirect objects, idle on random
repeats.
"""

from importlib import resources

import pandas as pd

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.builtin import ANTI_INDUCTION, kind_of
from interp.scan.columns import EFFECT
from interp.scan.table import HeadScan

_COLUMNS = ["layer", "head", "name", "kind", "condition", "label", "labels"]
_COLUMNS += ["score", EFFECT, "agrees", "source"]
_ALSO_CALLED = {"gpt2-small": "gpt2"}


def published_heads(model: str | None = None) -> pd.DataFrame:
    """The published table: model, layer, head, kind, condition and source of each head.

    Args:
        model: Hub id, with or without the owner, to get only this model's heads.

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
    name = model.rsplit("/", 1)[-1].lower().removesuffix("-hf")
    name = _ALSO_CALLED.get(name, name)
    mine = table.loc[table["model"] == name]
    if mine.empty:
        known = ", ".join(sorted(set(table["model"])))
        raise InputError(f"model must be one that papers name heads of ({known}), got {name!r}")
    return mine.reset_index(drop=True)


def compare_with_published(scan: HeadScan, model: str | None = None) -> pd.DataFrame:
    """Compare a scan with the heads that papers describe in the same model.

    Args:
        scan: Scan of that model.
        model: Name of the model; the one in the scan's record if left out.

    Returns:
        One row for each published head. `name`, `kind`, `condition` and `source` are the
        paper's; `label` and `labels` the scan's; `score` the scan's mean attention mass on that
        kind's targets, in [0, 1] (for anti-induction those of induction);
        `induction_logit_effect` the scan's, in logits. `agrees` says whether the kind is among
        the labels. It is missing if the paper gives a condition, if the scan does not have the
        head or could not measure it, and for anti-induction if the scan has no effects.

    Raises:
        InputError: If nothing is published for the model, or the scan does not name its model.

    Example:
        >>> import interp
        >>> from interp.kinds.labels import HeadLabel
        >>> head, label = interp.Head(5, 1), "induction"
        >>> scan = interp.HeadScan.of([HeadLabel(head, label, (label,), {label: 0.9}, {})])
        >>> table = compare_with_published(scan, "gpt2")
        >>> table.loc[table["name"] == "L5H1", "agrees"].tolist()
        [True]
    """
    name = model or scan.made_by.get("model")
    if not name:
        raise InputError("model must be given: the scan's record does not name it")
    rows = []
    seen = {row["name"]: row for row in scan.frame.to_dict("records")}
    for paper in published_heads(name).to_dict("records"):
        head = str(Head(paper["layer"], paper["head"]))
        found = seen.get(head, {})
        kind = kind_of(paper["kind"])
        score = found.get(kind.name if kind else "", pd.NA)
        effect = found.get(EFFECT, pd.NA)
        known = not (pd.isna(score) or (paper["kind"] == ANTI_INDUCTION and pd.isna(effect)))
        labels = found.get("labels", [])
        agrees = paper["kind"] in labels if known and not paper["condition"] else pd.NA
        rows.append(
            paper
            | {"name": head, "label": found.get("label", ""), "labels": labels}
            | {"score": score, EFFECT: effect, "agrees": agrees}
        )
    types = {"score": "Float64", EFFECT: "Float64", "agrees": "boolean"}
    return pd.DataFrame.from_records(rows, columns=_COLUMNS).astype(types)
