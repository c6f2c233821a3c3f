"""How much of a model's attention the kinds explain, from a scan's table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.errors import InputError
from interp.heads import Head
from interp.kinds.evidence import ratio_interval
from interp.kinds.explained import QUERIES, START, Examples, Explained
from interp.kinds.vocabulary import CLASSES, class_of
from interp.text import joined, prose, visible

BEFORE, AFTER = 8, 3
"""Tokens around an example's token that are kept as its context."""

DECILES = 10

DISTANCES = {"up to 15": (0, 16), "16 to 63": (16, 64), "64 or more": (64, np.inf)}
"""Distances of a key from its query, in tokens, that make a cluster: at least, and below."""

_NEEDED = ("outside_sinks", "explained", "explained_null", "explained_low")


@dataclass(frozen=True, eq=False)
class ExplainedShare:
    """Share of the attention outside sinks, on natural text, that lands on the kinds' targets.

    Attributes:
        frame: One row per head: `name`, `outside_sinks`, `explained`, `explained_null`, the
            interval, and `explained_by_<kind>` (see `docs/columns.md`).
        share: The model's share, in [0, 1]: that of all heads' attention taken together.
        null: `share` of as many keys drawn evenly.
        low: Lower end of the 95 % interval of `share` over rows; None if it is not known.
        high: Its upper end.
        kept: Examples by head, as `made_by["explained"]` holds them.
    """

    frame: pd.DataFrame
    share: float
    null: float
    low: float | None = None
    high: float | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: pd.DataFrame, made_by: Mapping[str, Any]) -> "ExplainedShare":
        """The share from a scan's table and its record.

        Raises:
            InputError: If the scan did not measure it.
        """
        absent = not {*_NEEDED} <= {*frame.columns}
        if absent or not np.nansum(outside := numbers(frame, "outside_sinks")) > 0:
            why = made_by.get("left_out", {}).get("explained", "got one without these columns")
            raise InputError(
                f"scan must be made with explained=True, on natural text: {prose(why)}"
            )
        share, null = (
            float(np.nansum(outside * numbers(frame, name)) / np.nansum(outside))
            for name in ("explained", "explained_null")
        )
        names = [n for n in frame.columns if n in _NEEDED or n.startswith("explained_")]
        kept = made_by.get("explained", {})
        ends = {end: kept.get(end) for end in ("low", "high")}
        return cls(frame.loc[:, ["name", *names]].copy(), share, null, **ends, kept=kept)

    @property
    def examples(self) -> pd.DataFrame:
        """The pairs of each head with the most attention that no kind explains.

        One row per pair, the largest first: `name`, `weight` in [0, 1], `row` of the text, and of
        query and key `..._position`, `..._token` and the text `..._before` and `..._after` it.
        Empty for a table from a CSV file.
        """
        return self._examples("unexplained")

    @property
    def clusters(self) -> pd.DataFrame:
        """The pairs of `examples` by the class of the key's token and its distance.

        One row per cluster, the largest first: `key` (`interp.kinds.vocabulary.CLASSES`, or blank),
        `distance` in tokens, `share` of the weight of all these pairs, in [0, 1], the number of
        `heads` that have some, and the columns of the strongest pair.
        """
        frame = self.examples
        if frame.empty:
            return frame
        away = (frame["query_position"] - frame["key_position"]).abs()
        frame["key"] = [[*CLASSES, "blank"][class_of(token)] for token in frame["key_token"]]
        for words, (least, below) in DISTANCES.items():
            frame.loc[(away >= least) & (away < below), "distance"] = words
        frame = frame.sort_values("weight", ascending=False, kind="stable")
        groups = frame.groupby(["key", "distance"], sort=False)
        share = groups["weight"].sum() / frame["weight"].sum()
        found = groups.first().assign(share=share, heads=groups["name"].nunique())
        return found.sort_values("share", ascending=False, kind="stable").reset_index()

    @property
    def engagement(self) -> pd.DataFrame:
        """How much of a head's attention is not on sinks, by tenths of a sample of queries.

        One row per head and tenth (`decile`, 1 the least engaged): `engaged`, its mean in [0, 1],
        and an example as in `examples`, the key outside sinks that gets most of the attention.
        """
        frame = self._examples("engagement")
        return frame.assign(decile=frame.groupby("name").cumcount() + 1) if len(frame) else frame

    def _examples(self, which: str) -> pd.DataFrame:
        by_head = self.kept.get(which, {}).items()
        rows = [{"name": name, **one} for name, each in by_head for one in each]
        return pd.json_normalize(rows, sep="_")

    def to_frame(self) -> pd.DataFrame:
        """Copy of the table: one row per head."""
        return self.frame.copy()

    def __repr__(self) -> str:
        ends = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return (
            f"ExplainedShare({self.share:.3f}{ends} of the attention outside sinks, null"
            f" {self.null:.3f}, {len(self.frame)} heads)"
        )


def numbers(frame: pd.DataFrame, name: str) -> Float[np.ndarray, " head"]:
    """A column of numbers; NaN where one is missing."""
    return frame[name].to_numpy(float, na_value=np.nan)


def columns_of(explained: Explained) -> dict[str, list[float]]:
    """The columns of a layer's heads."""
    total = explained.outside.sum(0)
    low, high = ratio_interval(torch.stack([*explained.on.values()]).sum(0), explained.outside)
    return {
        "outside_sinks": (total / explained.queries.sum()).tolist(),
        "explained": explained.share.tolist(),
        "explained_null": explained.null.tolist(),
        "explained_low": low.tolist(),
        "explained_high": high.tolist(),
        **{
            f"explained_by_{kind}": (on.sum(0) / total).tolist()
            for kind, on in explained.on.items()
        },
    }


def record_of(
    by_layer: Mapping[int, Explained], texts_of: Callable[[int], list[str]]
) -> dict[str, Any]:
    """How it was measured, the interval of the model's share, and examples of each head.

    `texts_of` gives the texts of the tokens of a row.
    """
    on = [torch.stack([*one.on.values()]).sum((0, -1)) for one in by_layer.values()]
    outside = [one.outside.sum(-1) for one in by_layer.values()]
    low, high = ratio_interval(*(torch.stack(x, -1).sum(-1, True) for x in (on, outside)))[:, 0]
    ends = {} if low.isnan() else {"low": low.item(), "high": high.item()}
    texts_of = cache(texts_of)
    examples = {"unexplained": {}, "engagement": {}}
    for layer, one in by_layer.items():
        for head in range(one.outside.shape[1]):
            name = str(Head(layer, head))
            if one.examples is not None:
                examples["unexplained"][name] = _unexplained(one.examples, head, texts_of)
                examples["engagement"][name] = _engagement(one.examples, head, texts_of)
    return {"first_query": START, "most_queries": QUERIES, **ends, **examples}


def pairs_in_words(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Pairs in a line: `␣query → ␣key (0.43)`."""
    words = (
        f"{visible(one['query']['token'])} → {visible(one['key']['token'])} ({one['weight']:.2f})"
        for one in pairs
    )
    return "; ".join(words)


def _unexplained(
    examples: Examples, head: int, texts_of: Callable[[int], list[str]]
) -> list[dict[str, Any]]:
    both = zip(examples.pairs[head].tolist(), examples.weight[head].tolist(), strict=True)
    return [_example(weight, pair, texts_of) for pair, weight in both if weight > 0]


def _engagement(
    examples: Examples, head: int, texts_of: Callable[[int], list[str]]
) -> list[dict[str, Any]]:
    """Tenths of the queries by engagement, each with the query in its middle."""
    engaged = examples.engaged[head]
    tenths = []
    for tenth in engaged.argsort(stable=True).tensor_split(DECILES):
        if len(tenth):
            at = int(tenth[len(tenth) // 2])
            places = [*examples.queries[at].tolist(), int(examples.key[head, at])]
            example = _example(float(examples.on_key[head, at]), places, texts_of)
            tenths.append({"engaged": round(float(engaged[tenth].mean()), 6)} | example)
    return tenths


def _example(
    weight: float, pair: Sequence[int], texts_of: Callable[[int], list[str]]
) -> dict[str, Any]:
    row, query, key = pair
    places = {"query": _place(texts_of(row), query), "key": _place(texts_of(row), key)}
    return {"weight": round(weight, 6), "row": row, **places}


def _place(texts: list[str], at: int) -> dict[str, Any]:
    before = joined(texts[max(0, at - BEFORE) : at])
    after = joined(texts[at + 1 : at + 1 + AFTER])
    return {"position": at, "token": texts[at], "before": before, "after": after}
