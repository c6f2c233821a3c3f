"""What a head writes for a token, from the weights alone, next to what it does in prompts.

If a head attends to a token s, it adds `e(s) W_V W_O W_U` to the logits (`M = W_E W_V W_O W_U` of
MAPS, Elhelo and Geva 2024, arXiv 2412.11965). A relation of pairs (s, t) is in the weights if t is
among the largest of row s. So is that of a successor head, which raises the next of an ordinal
class (Gould et al. 2023, arXiv 2312.09230), and, with t = s among the smallest, that of a head that
suppresses copies (McDougall et al. 2023, arXiv 2310.04625). Where it attends is another question:
these are scores, not labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from interp.effects.saved import Report, Saved
from interp.errors import Count, InputError, Seed, checked
from interp.files import plain_rows
from interp.heads import Head
from interp.kinds.meaning import RELATED
from interp.models import Model, load_model
from interp.scan.record import Record
from interp.weights.direct import Readout, logit_parts
from interp.weights.folded import embedding, head_weights

Pairs = Sequence[tuple[str, str]]

_CHAINS = {
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November"
    " December",
    "numbers": "one two three four five six seven eight nine ten eleven twelve",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
}

RELATIONS: dict[str, Pairs] = {
    **{f"successor of {name}": [*pairwise(words.split())] for name, words in _CHAINS.items()},
    **{
        f"{first} to {second}": [*zip(words.split()[::2], words.split()[1::2], strict=True)]
        for (first, second), words in RELATED.items()
    },
}
"""Pairs of words by relation: each word's successor, or its partner in another list."""

COPYING, SUPPRESSION = "copying", "copy suppression"
LEAST, SHOTS, DRAWS = 5, 3, 1000
"""Least number of pairs of a relation, pairs before the asked one in a prompt, and draws."""


@dataclass(frozen=True, eq=False, repr=False)
class StaticScores(Saved):
    """How far each head's weights hold each relation, from `static_scores`.

    Attributes:
        frame: Table as `to_frame` returns it.
        made_by: Model, relations as token ids, settings, versions.
    """

    frame: pd.DataFrame
    made_by: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each relation and head.

        Columns: `relation` and its number of `pairs`; `layer`, `head`, `name`; `score`, the share
        of pairs with t among the `top` logits of s, in [0, 1]; `null`, that share for the targets
        of other pairs, and `null_99`, the 99 % quantile over shuffled pairs; `within`, the share of
        pairs in which t has the largest logit of all targets of the relation (Gould's score of a
        successor head); with `in_context`, the head's mean direct effect on the logit of t minus
        that of another target, in prompts of pairs.
        """
        return self.frame.copy()

    def correlations(self) -> pd.Series:
        """Pearson correlation of `score` and `in_context` over heads, by relation."""
        found = {}
        for name, rows in self.frame.groupby("relation"):
            both = torch.tensor(rows[["score", "in_context"]].to_numpy(float)).T
            found[name] = torch.corrcoef(both)[0, 1].item()
        return pd.Series(found).dropna()

    def strongest(self) -> pd.DataFrame:
        """The row of the head with the highest score of each relation."""
        return self.frame.loc[self.frame.groupby("relation", sort=False)["score"].idxmax()]

    def summary(self) -> Report:
        """The strongest head of each relation, and the correlations, as plain values."""
        correlations = {name: round(value, 3) for name, value in self.correlations().items()}
        rows = plain_rows(self.strongest())
        return Report({"made_by": self.made_by, "strongest": rows, "correlations": correlations})

    def __repr__(self) -> str:
        best = ", ".join(
            f"{row['relation']} {row['name']} {row['score']:.2f} (null {row['null_99']:.2f})"
            for row in self.strongest().to_dict("records")
        )
        return f"StaticScores({self.made_by.get('model', 'a model')}: {best})"

    def to_json(self) -> dict[str, Any]:
        """The table and the record as `save` writes them."""
        return {"made_by": self.made_by, "scores": plain_rows(self.frame)}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "StaticScores":
        """The result that `to_json` wrote."""
        return cls(pd.DataFrame.from_records(content["scores"]), content["made_by"])


@checked
def static_scores(
    model: Any,
    relations: Mapping[str, Any] | None = None,
    *,
    top: Count = 10,
    through_mlp: bool = True,
    in_context: bool = False,
    seed: Seed = 0,
) -> StaticScores:
    """How far the weights of each head alone hold relations between tokens.

    Args:
        model: `Model`, or anything that `interp.load_model` accepts: a causal model.
        relations: Pairs (s, t) of words or of token ids, by name; `RELATIONS` if left out. Words
            that are not one token with a blank before it are left out.
        top: Number of largest logits among which t counts (1 or 10 in MAPS).
        through_mlp: Whether s is what the first layer makes of its embedding (Gould's), or the
            embedding itself (MAPS).
        in_context: Whether to measure the heads in prompts of pairs too.
        seed: Random seed of the shuffled pairs.

    Returns:
        The scores, and those of `copying` (t = s) and `copy suppression` (t = s among the `top`
        smallest), over all tokens of the relations.

    Raises:
        InputError: If no relation has `LEAST` pairs, or the weights cannot be read.

    Example:
        >>> from interp import build_circuit
        >>> model = build_circuit("rotary", 64, 65)
        >>> scores = static_scores(
        ...     model, {"next": [(i, i + 1) for i in range(2, 12)]}, top=1, through_mlp=False
        ... )
        >>> scores.strongest().set_index("relation").loc["copying", "name"]
        'L1H2'
    """
    model = load_model(model)
    pairs = {name: _ids(model, given) for name, given in (relations or RELATIONS).items()}
    left_out = [name for name, each in pairs.items() if len(each) < LEAST]
    pairs = {name: each for name, each in pairs.items() if len(each) >= LEAST}
    if not pairs:
        raise InputError(f"relations must have one of {LEAST} pairs of single tokens, got none")
    every = torch.cat([*pairs.values()]).unique()
    asked = {**pairs, COPYING: torch.stack([every, every], 1)}
    asked[SUPPRESSION] = asked[COPYING]
    readout = Readout(model)
    U = (readout.W_U @ readout.tail).T
    x = embedding(model, every, through_mlp=through_mlp)
    generator = Generator().manual_seed(seed)
    orders = {
        name: torch.stack([torch.randperm(len(p), generator=generator) for _ in range(DRAWS)])
        for name, p in asked.items()
    }
    place = {name: torch.searchsorted(every, p[:, 0].contiguous()) for name, p in asked.items()}
    effects = {name: _in_context(model, readout, p) for name, p in pairs.items() if in_context}
    rows = []
    for layer, heads in head_weights(model).items():
        for head in range(heads.n_heads):
            W_V, W_O = heads.OV(head)
            logits = (x @ W_V + heads.b_V[head // heads.group]) @ W_O @ U
            for name, each in asked.items():
                mine = (-logits if name == SUPPRESSION else logits)[place[name]]
                row: dict[str, Any] = {"relation": name, "pairs": len(each), "layer": layer}
                row |= {"head": head, "name": str(Head(layer, head))}
                row |= _shares(mine, each[:, 1], orders[name], top)
                if in_context:
                    row["in_context"] = effects[name][layer, head].item() if name in pairs else nan
                rows.append(row)
    frame = pd.DataFrame.from_records(rows)
    frame = frame.sort_values("relation", key=lambda x: x.map([*asked].index), kind="stable")
    made_by = Record.of_model(
        model,
        relations={name: each.tolist() for name, each in pairs.items()},
        **{"left_out": left_out, "top": top, "through_mlp": through_mlp, "seed": seed},
    )
    return StaticScores(frame.reset_index(drop=True), made_by)


def _ids(model: Model, pairs: Any) -> Int[Tensor, "pair 2"]:
    """The pairs of which both words are one token, as ids."""
    ids = []
    for pair in pairs:
        both = [[one] if isinstance(one, int) else _tokens(model, one) for one in pair]
        if all(len(one) == 1 for one in both) and len(both) == 2:
            ids.append([one[0] for one in both])
    return torch.tensor(ids, dtype=torch.long).view(-1, 2)


def _tokens(model: Model, word: str) -> list[int]:
    if model.tokenizer is None:
        raise InputError(f"relations must be of token ids, since {model.name} has no tokenizer")
    return model.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]


def _shares(
    logits: Float[Tensor, "pair vocab"],
    targets: Int[Tensor, " pair"],
    orders: Int[Tensor, "draw pair"],
    top: int,
) -> dict[str, float]:
    """The scores of a head for a relation, from its logits for each s."""
    number, on_targets = len(targets), logits[:, targets]
    hits = (on_targets >= logits.topk(top).values[:, -1:]).float()
    own, each = hits.diagonal(), torch.arange(number, device=logits.device)
    shuffled = hits[each, orders.to(hits.device)].mean(1)
    return {
        **{"score": own.mean().item(), "null_99": shuffled.quantile(0.99).item()},
        "null": ((hits.sum() - own.sum()) / (number * (number - 1))).item(),
        "within": (on_targets.argmax(1) == each).float().mean().item(),
    }


def _in_context(
    model: Model, readout: Readout, pairs: Int[Tensor, "pair 2"]
) -> Float[Tensor, "layer head"]:
    """Mean effect on the logit of t minus that of another target, after pairs and s."""
    comma: list[int] = []
    if model.tokenizer is not None:
        comma = model.tokenizer(",", add_special_tokens=False)["input_ids"]
    bos = [] if model.bos is None else [model.bos]
    prompts = []
    for number in range(len(pairs)):
        shots = [pairs[(number + n) % len(pairs)].tolist() for n in range(1, SHOTS + 1)]
        before = [token for shot in shots for token in [*shot, *comma]]
        prompts.append([*bos, *before, int(pairs[number, 0])])
    tokens = torch.tensor(prompts)
    effects = []
    for answer in (pairs[:, 1], pairs[:, 1].roll(-SHOTS - 1)):
        answers = answer[:, None].expand_as(tokens)
        heads = logit_parts(model, tokens, answers, readout=readout)["heads"]
        effects.append(heads[..., -1].mean(1))
    return (effects[0] - effects[1]).detach().cpu()
