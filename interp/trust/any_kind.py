"""How often labels of any kind are right, also of your own: `kind_accuracy`.

Half of the heads attend to the kind's targets on natural text, half to other keys: the keys before
the targets, as many at random, or the targets in half of the rows. The rest of their attention goes
to the first token, evenly to all keys and at random, and the strength varies from row to row and
from query to query, as for the planted heads of `interp.trust.planted`.

The right label follows from the attention without randomness: the kind's, if its excess over even
attention reaches the threshold. Heads within `APART` of the threshold are not drawn.
"""

import re
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.effects.saved import Report
from interp.errors import Count, InputError, Seed, checked
from interp.files import plain_rows
from interp.kinds import probes
from interp.kinds.builtin import as_kinds
from interp.kinds.kind import Kind
from interp.kinds.labels import excess
from interp.kinds.scores import Thresholds
from interp.kinds.targets import NONE, cells, ordinary
from interp.patterns.classify import classify_heads
from interp.scan.table import HeadScan
from interp.trust.planted import mixed, softmax, unsteady

ROWS, LENGTH, QUERIES = 12, 128, 200
APART = 0.02
"""Least distance of a head's excess from the threshold."""

Keys = Int[Tensor, "row query m"]


def text_rows(rows: int, length: int, seed: int) -> tuple[Int[Tensor, "row pos"], list[list[str]]]:
    """Rows of the built-in passages and the text of each token, without a tokenizer.

    A token is a line end, a mark, a number, or a piece of a word of at most three letters, with the
    blank before it. The first token of a row is `<s>`, with id 0.
    """
    pieces = [
        piece
        for text in probes.passages().values()
        for piece in re.findall(r"\n+| ?\d{1,2}| ?[^\W\d_]{1,3}| ?[^\w\s]|\s|_", text)
    ]
    starts = torch.randint(
        len(pieces) - length, (rows,), generator=Generator().manual_seed(seed)
    ).tolist()
    texts = [["<s>", *pieces[start : start + length - 1]] for start in starts]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(["<s>", *pieces]))}
    return torch.tensor([[ids[piece] for piece in row] for row in texts]), texts


def _before(keys: Keys, generator: Generator) -> Keys:
    """The keys just before the targets."""
    return torch.where(keys > 1, keys - 1, NONE)


def _random(keys: Keys, generator: Generator) -> Keys:
    """As many visible keys at random."""
    query = torch.arange(keys.shape[1])[:, None]
    drawn = (torch.rand(keys.shape, dtype=torch.float32, generator=generator) * (query + 1)).long()
    return torch.where(keys != NONE, drawn, NONE)


def _half(keys: Keys, generator: Generator) -> Keys:
    """The targets in half of the rows."""
    kept = torch.randperm(len(keys), generator=generator) < len(keys) // 2
    return torch.where(kept[:, None, None], keys, NONE)


ROLES: dict[str, Callable[[Keys, Generator], Keys]] = {
    "the kind": lambda keys, generator: keys,
    "before the targets": _before,
    "at random": _random,
    "half of the rows": _half,
}


@checked
def kind_accuracy(kind: Any, *, heads: Count = 200, seed: Seed = 0) -> dict[str, Any]:
    """How often planted heads and near misses get the label of `kind` if and only if it is right.

    Args:
        kind: One kind, as `interp.scan_heads` takes it: a name, or a kind of your own.
        heads: Number of heads; half of them are of the kind.
        seed: Random seed.

    Returns:
        `heads`, `right` (number of right decisions), `accuracy` (their share), and `wrong`, by role
        the number of wrong ones.

    Raises:
        InputError: If it is more than one kind, or text has too few of its targets.

    Example:
        >>> kind_accuracy("offset 3", heads=8)["accuracy"]
        1.0
    """
    (chosen, *others) = as_kinds(kind).values()
    if others:
        raise InputError(f"kind must be one kind, got {1 + len(others)}")
    generator = Generator().manual_seed(seed)
    every, every_text = _rows_with(chosen, seed)
    aimed = (chosen(every, every_text) != NONE).any(-1).sum(-1)
    if int(aimed.min()) < 1:
        raise InputError(f"kind must have targets on text, got {chosen.label}")
    rows = max(ROWS, int(QUERIES / aimed.float().mean()))
    wrong: dict[str, int] = dict.fromkeys(ROLES, 0)
    for number in range(0, heads, len(ROLES) * 2 - 2):
        drawn = torch.randint(len(every), (rows,), generator=generator).tolist()
        tokens, texts = every[drawn], [every_text[row] for row in drawn]
        # As many heads of the kind as near misses.
        roles = [*["the kind"] * (len(ROLES) - 1), *list(ROLES)[1:]][: heads - number]
        patterns, truths, keys = [], [], chosen(tokens, texts)
        for role in roles:
            pattern, right = _plant(chosen, tokens, keys, role, generator)
            patterns.append(pattern)
            truths.append(right)
        stacked = torch.stack(patterns, 1)
        read = [[text for text in row if text] for row in texts]
        labels = classify_heads(stacked, tokens, kinds=[chosen], texts=read)
        for role, right, head in zip(roles, truths, labels, strict=True):
            wrong[role] += (chosen.label in head.labels) != right
    right = heads - sum(wrong.values())
    return {"heads": heads, "right": right, "accuracy": right / heads, "wrong": wrong}


def _rows_with(kind: Kind, seed: int) -> tuple[Int[Tensor, "row pos"], list[list[str]]]:
    """Rows with targets of a kind: its own prompts, or the tenth of text that has the most."""
    if all(isinstance(prompt, str) for prompt in kind.on) and not isinstance(kind.on, str):
        pieces = [["<s>", *re.findall(r" ?\w+|\W", prompt)] for prompt in kind.on]
        ids = {
            piece: number for number, piece in enumerate(dict.fromkeys(chain.from_iterable(pieces)))
        }
        rows = [torch.tensor([ids[piece] for piece in row]) for row in pieces]
        tokens = pad_sequence(rows, True, NONE)
        return tokens, [row + [""] * (tokens.shape[1] - len(row)) for row in pieces]
    tokens, texts = text_rows(20 * ROWS, LENGTH, seed)
    most = (kind(tokens, texts) != NONE).any(-1).sum(-1).topk(2 * ROWS).indices.tolist()
    return tokens[most], [texts[row] for row in most]


def _plant(
    kind: Kind,
    tokens: Int[Tensor, "row pos"],
    keys: Keys,
    role: str,
    generator: Generator,
) -> tuple[Float[Tensor, "row query key"], bool]:
    """A head's attention, and whether it is one of the kind."""
    targets = cells(keys, tokens.shape[1])
    counted = targets.any(-1) & ordinary(tokens)
    visible = torch.arange(1, tokens.shape[1] + 1)
    chance = float((targets.sum(-1) / visible)[counted].mean())
    places = cells(ROLES[role](keys, generator), tokens.shape[1]).float()
    work = places / places.sum(-1, keepdim=True).clamp(min=1)
    active = places.any(-1)
    even = softmax(torch.zeros_like(work))
    first = torch.zeros_like(work)
    first[..., 0] = 1
    while True:
        low, high = torch.rand(2, dtype=torch.float32, generator=generator).sort().values.tolist()
        strength = float(torch.rand((), dtype=torch.float32, generator=generator))
        in_rows, in_queries = unsteady(strength, active.shape, generator)
        expected = mixed(in_rows * active, work, low * first + (1 - low) * even)
        score = float((expected * targets).sum(-1)[counted].mean())
        spare = excess(score, chance) - Thresholds().of(kind)
        if abs(spare) >= APART:
            break
    spread = 0.5 + 2.5 * torch.rand((), dtype=torch.float32, generator=generator)
    noise = softmax(spread * torch.randn(work.shape, dtype=torch.float32, generator=generator))
    rest = low * first + (high - low) * even + (1 - high) * noise
    return mixed(in_queries * active, work, rest), spare >= 0


MIXED_KINDS = "duplicate token, previous token, current token, offset 3, last punctuation, digits"
"""Kinds of which `mixture_errors` mixes some."""


@checked
def mixture_errors(*, cases: Count = 1000, kinds: Any = MIXED_KINDS, seed: Seed = 0) -> Report:
    """How well the share of each kind is recovered from heads that mix kinds.

    A head gives each kind a share of its attention, on average over queries, and the rest to the
    first token; shares vary from query to query. Targets of kinds overlap, so the shares are those
    that best give the head's scores, as sums of the scores of heads of one kind each.

    Returns:
        `cases`, `within` (share of cases in which every share is within .03) and `quantile_95` and
        `largest`, of the largest error of each case.

    Example:
        >>> mixture_errors(cases=8)["within"]
        1.0
    """
    chosen, generator = as_kinds(kinds), Generator().manual_seed(seed)
    tokens, texts = text_rows(ROWS, LENGTH, seed)
    masks = torch.stack([cells(kind(tokens, texts), LENGTH) for kind in chosen.values()]).float()
    ideal = masks / masks.sum(-1, keepdim=True).clamp(min=1)
    there = masks.any(-1, keepdim=True).float()

    def scores(shares: Float[Tensor, "head kind *rest"]) -> Float[Tensor, "head kind"]:
        shares = shares.view(*shares.shape, *[1] * (5 - shares.dim())) * there
        pattern = (shares * ideal).sum(1)
        pattern[..., 0] += 1 - shares.sum(1)[..., 0]
        read = [[text for text in row if text] for row in texts]
        labels = classify_heads(pattern.transpose(0, 1), tokens, kinds=chosen, texts=read)
        return torch.tensor([[head.scores[name] for name in chosen] for head in labels])

    number, errors = len(chosen), []
    alone = scores(torch.eye(number))
    for start in range(0, cases, 50):
        size = min(50, cases - start)
        drawn = torch.rand(size, number, dtype=torch.float32, generator=generator)
        kept = torch.rand(size, number, dtype=torch.float32, generator=generator) < 0.5
        drawn = drawn * kept
        shares = 0.95 * drawn / drawn.sum(1, keepdim=True).clamp(min=1)
        shape = (size, number, *tokens.shape, 1)
        noise = torch.rand(shape, dtype=torch.float32, generator=generator) - 0.5
        unsteady_shares = shares[..., None, None, None] * (1 + 0.1 * noise)
        found = torch.linalg.lstsq(alone.T, scores(unsteady_shares).T).solution.T
        errors.append((found - shares).abs().amax(1))
    largest = torch.cat(errors)
    return Report(
        {
            **{"cases": cases, "kinds": [*chosen], "seed": seed},
            "within": round((largest <= 0.03).float().mean().item(), 4),
            "quantile_95": round(largest.quantile(0.95).item(), 4),
            "largest": round(largest.max().item(), 4),
        }
    )


STRONGEST, LARGEST = 3, 6
"""Heads of a kind that `describe_kinds` names; clusters and heads of `describe_explained`."""


def describe_explained(scan: HeadScan) -> Report:
    """How much of a model's attention the kinds explain on a text, and what they do not.

    `share`, `null`, `low` and `high` are those of `scan.explained()`, `by_kind` are the parts of
    the share, `clusters` the largest of its clusters, and `heads` those with the most attention
    that no kind explains, as a share of all of it (`unexplained`), with their preferred tokens.
    """
    share = scan.explained()
    frame = scan.frame.fillna({"preferred": ""} if "preferred" in scan.frame else {})
    outside = frame["outside_sinks"].astype(float)
    parts = frame.filter(like="explained_by_").mul(outside, axis=0).sum() / outside.sum()
    frame["unexplained_share"] = (1 - frame["explained"]) * outside / outside.sum()
    names = ["name", "outside_sinks", "explained", "unexplained_share", "preferred", "unexplained"]
    heads = frame.nlargest(LARGEST, "unexplained_share").filter(names)
    return Report(
        {
            **{"model": scan.made_by.get("model", ""), "text": scan.made_by.get("text", {})},
            **{"share": share.share, "null": share.null, "low": share.low, "high": share.high},
            "by_kind": {
                str(n).removeprefix("explained_by_"): round(x, 4) for n, x in parts.items()
            },
            "clusters": plain_rows(share.clusters.head(LARGEST).round(4)),
            "heads": plain_rows(heads.round(4)),
        }
    )


def describe_kinds(
    scan: HeadScan,
    *,
    heads: int = 200,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Every kind of a scan: what it is, the heads that carry it, and how often its label is right.

    `kinds` has a record for each: `name`, `look`, `source`, `on`, `threshold`, `heads` with the
    label, the `strongest` heads with their evidence (also those without the label), and the result
    of `kind_accuracy` on `heads` planted heads.
    """
    records = []
    for number, (name, kind) in enumerate(scan.kinds.items()):
        columns = [f"{name}{end}" for end in ("", "_low", "_high", "_chance", "_null_99")]
        known = scan.frame.reindex(columns=["name", *columns])
        known.columns = pd.Index(["name", "score", "low", "high", "chance", "null_99"])
        best = known.dropna(subset=["score"]).sort_values("score", ascending=False).head(STRONGEST)
        rows = plain_rows(best.round(4))
        records.append(
            {
                **{"name": name, "look": kind.looks(asdict(Thresholds())), "source": kind.source},
                **{"on": kind.part, "threshold": Thresholds().of(kind)},
                **{"heads": len(scan.having(kind.label)), "strongest": rows},
                "planted": kind_accuracy(kind, heads=heads, seed=seed),
            }
        )
        if progress is not None:
            progress(number + 1, len(scan.kinds))
    return Report({"model": scan.made_by.get("model", ""), "seed": seed, "kinds": records})
