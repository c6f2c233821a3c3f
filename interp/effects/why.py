"""Why a head attends: one attention score as a sum over pairs of earlier parts of the model.

With the scale of each norm frozen at its value in this run, the residual stream that a layer reads
is a sum of parts (the embedding, the output of each earlier head, what else each earlier layer
adds, and biases), and queries and keys are linear in it. So each score is a sum over pairs of a
part a at the query i and a part b at the key j:

    score(i, j) = scale * sum over a, b of  q_i(a) . k_j(b)

where `q_i(a)` is the query that the layer's own modules make of part a alone: norm, weights,
rotary positions. The softmax ignores what all keys share, so a term is counted against the other
visible keys j', and the terms sum to the mean log-odds of the key against each of them:

    term(a, b) = scale * (q_i(a) . k_j(b) - mean over j' of q_i(a) . k_j'(b))
    sum of all terms = mean over j' of log(pattern[i, j] / pattern[i, j'])

(QK attributions: transformer-circuits.pub 2025; ACC++: arXiv 2602.13483.) Two things are no product
of a query and a key. ALiBi's bias is a term of its own, `position`. A soft cap (Gemma 2) comes
after the sum: terms are of the scores before it. A learned sink (gpt-oss) is no key and takes no
part in log-odds between keys.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from pydantic import StrictInt
from torch import Tensor, nn

from interp.effects.ablate import all_heads, parsed_heads
from interp.effects.saved import Saved
from interp.errors import InputError, checked, quoted
from interp.heads import AnyHead, Head
from interp.kinds.mass import FromQK
from interp.kinds.targets import within
from interp.models import Model, load_model
from interp.models.families import layer_modules
from interp.models.reading import QKV, Call, Reading, rereading
from interp.models.stream import around
from interp.scan.record import Record
from interp.weights.direct import bias_of
from interp.weights.linear import Linear, linear_pass
from interp.weights.norms import Held, Norm, held, norms_in

SHARE = 0.8
"""Share of the log-odds that the smallest set of terms carries."""

SIDES = ("query", "key")

_ALL = "all of these"
_PARTS = pd.Index(["query_part", "key_part"])
_CHECKS = pd.Index(["side", "part", "predicted", "frozen", "recomputed"])

_CLOSE = 1e-4
"""Largest error of a sum of parts, relative to the largest part."""


@dataclass(frozen=True, eq=False, repr=False)
class Why(Saved):
    """The terms of one attention score, from `interp.why`.

    Attributes:
        head: The head.
        query, key: Positions.
        terms: Log-odds by part at the query (rows) and part at the key (columns), in nats.
        scores: The same for the score itself, whose terms the other keys may share.
        checks: What happens without some parts; columns in `interp.why`.
        made_by: Model, token ids and texts, attention, versions.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> why = interp.why(toy, torch.tensor([[0, 5, 6, 7, 5]]), "L1H5", query=4)
        >>> why.terms.index[0]  # Parts at the query, the largest first.
        'own bias'
    """

    head: Head
    query: int
    key: int
    terms: pd.DataFrame
    scores: pd.DataFrame
    checks: pd.DataFrame
    made_by: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        table = self.to_frame()
        table = table.loc[table["in_smallest"]]
        columns = (table[name] for name in ("query_part", "key_part", "term"))
        first = (f"{q} x {k} {term:+.2f}" for q, k, term in [*zip(*columns)][:3])
        texts = self.made_by["texts"]
        where = f"{self.head} from {self.query} {texts[self.query]!r} to {self.key}"
        return (
            f"Why({self.made_by['model']}: {where} {texts[self.key]!r}, attention"
            f" {self.made_by['attention']:.2f}, log-odds {self.log_odds:+.2f} nats;"
            f" {len(table)} of {self.terms.size} terms carry {SHARE:.0%}: {', '.join(first)})"
        )

    @property
    def log_odds(self) -> float:
        """Mean log-odds of the key against each other visible key, in nats: the sum of `terms`."""
        return float(self.terms.to_numpy().sum())

    def to_frame(self) -> pd.DataFrame:
        """A table with a row for each term, the largest in the direction of the log-odds first.

        Columns: `query_part` and `key_part`; `term`, its log-odds in nats; `share` of all
        log-odds; `score`, its part of the score; `in_smallest`, whether it is one of the fewest
        terms that carry 80 % of the log-odds together.
        """
        parts = [*self.terms.index]
        table = pd.DataFrame(itertools.product(parts, parts), columns=_PARTS)
        table["term"] = self.terms.to_numpy().flatten()
        table["share"] = table["term"] / self.log_odds
        table["score"] = self.scores.to_numpy().flatten()
        table = table.sort_values("share", ascending=False, kind="stable", ignore_index=True)
        table["in_smallest"] = table["share"].cumsum().shift(fill_value=0.0) < SHARE
        return table

    def smallest(self, side: str = "key") -> list[str]:
        """The parts at the `key` or at the `query` that the smallest set of terms has."""
        table = self.to_frame()
        return [*table.loc[table["in_smallest"], f"{_side(side)}_part"].unique()]

    def by_part(self, side: str = "key") -> pd.Series:
        """The share of the log-odds of each part at the `key` or at the `query`, largest first."""
        _side(side)
        shares = self.terms.sum(axis="index" if side == "key" else "columns") / self.log_odds
        return shares.sort_values(ascending=False, kind="stable")

    def to_json(self) -> dict[str, Any]:
        """The result as `save` writes it."""
        tables = {"terms": self.terms, "scores": self.scores}
        return {
            "made_by": self.made_by,
            "head": str(self.head),
            "query": self.query,
            "key": self.key,
            **{name: table.to_dict("split") for name, table in tables.items()},
            "checks": self.checks.to_dict("records"),
        }

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Why":
        """The result that `to_json` wrote."""
        terms, scores = (
            pd.DataFrame(**content[name]).rename_axis(index=_PARTS[0], columns=_PARTS[1])
            for name in ("terms", "scores")
        )
        head, checks = Head.parse(content["head"]), pd.DataFrame(content["checks"])
        places = content["query"], content["key"]
        return cls(head, *places, terms, scores, checks, content["made_by"])


@checked
def why(
    model: Any, prompt: Any, head: AnyHead, query: StrictInt, key: StrictInt | None = None
) -> Why:
    """Which earlier parts of the model make a head attend from one token to another.

    The head's score is split into a term for each pair of a part at the query and a part at the
    key, with the scales of all norms frozen; see `interp.effects.why`. Parts are `embedding` (with
    learned positions), each earlier head (`L3H4`), what else each earlier layer adds (`L3 MLP`:
    its MLP, experts, or a mixer that is no attention), `biases` in the stream, and the head's
    `own bias`, which it adds to whatever it reads.

    Args:
        model: A `Model`, or anything that `interp.load_model` takes; not an encoder-decoder.
        prompt: One prompt, as for `Model.to_tokens`.
        head: Head to explain.
        query: Position that attends, from the end of the prompt if negative.
        key: Position that is attended to; the one with most attention if left out.

    Returns:
        Terms in nats, which sum to the mean log-odds of the key against each other visible key,
        and the fewest terms that carry 80 % of it. `checks` takes parts out and reads queries and
        keys again: a row for each part in the smallest set, on its `side` (`query` or `key`), and
        one for all of them. Its numbers are changes of the log-odds in nats: `predicted` from the
        terms; `frozen`, with norms as in the run; `recomputed`, where norms divide by the scale of
        what is left.

    Raises:
        InputError: If the residual stream is no sum of parts, or the query sees a single key.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> why = interp.why(toy, torch.tensor([[0, 5, 6, 7, 5]]), "L1H5", query=4)
        >>> why.key, why.by_part("key").index[0]  # It looks where the previous token was the same.
        (2, 'L0H3')
    """
    model = load_model(model)
    if model.plain is None or model.direction == "encoder-decoder":
        raise InputError(
            f"model must be one stack that transformers runs, got {model.name}, "
            + ("a bridge" if model.plain is None else "an encoder-decoder")
        )
    (head,) = parsed_heads("head", [head], all_heads(model), model.name)
    tokens = model.to_tokens(prompt).to(model.device)
    if len(tokens) > 1:
        raise InputError(f"prompt must be one, got {len(tokens)}")
    reading, seen = Reading(model, head.layer), {}
    with reading.watching():
        run = linear_pass(model, tokens, seen.__setitem__, {}, parts=True, layers=[head.layer])
    if model.direction == "both ways":
        around(model, tokens, seen.__setitem__, lambda _, out: out)
    asked = _Asked(model, seen[head.layer], head, query, key)
    parts = _parts(run, head.layer)
    stream, images = reading.stream.float(), torch.cat([*parts.values()])
    if not (images.sum(0) - stream[0]).abs().max() <= _CLOSE * images.abs().max():
        raise InputError(
            f"model must add up the residual stream from parts, got {model.name}, where those"
            f" before layer {head.layer} do not sum to it"
        )
    with rereading(model):
        scales = _scales(model, head.layer, reading)
        clean = asked.chosen(reading.of(stream))
        with held(scales):
            q, k = asked.chosen(reading.of(torch.cat([torch.zeros_like(stream), images])))
        for read in (q, k):  # What is read from nothing is the head's own.
            read[1:] -= read[:1].clone()
        terms, whole = asked.log_odds(q, k), asked.log_odds(*clean)
        if not (terms.sum() - whole).abs().max() <= _CLOSE * terms.abs().max():
            raise InputError(
                f"queries and keys must be linear in the stream, but the terms of {head} in"
                f" {model.name} sum to {terms.sum():.4g}, not to {whole.item():.4g}"
            )
        made_by = Record.of_model(
            model,
            tokens=tokens[0].tolist(),
            texts=model.texts_of(tokens[0]),
            attention=asked.attention,
            softcap=asked.softcap,
        )
        of_log_odds, of_score = (
            _table(["own bias", *parts], numbers, alibi)
            for numbers, alibi in zip((terms, asked.score(q, k)), asked.alibi, strict=True)
        )
        places = asked.query, asked.key
        found = Why(head, *places, of_log_odds, of_score, pd.DataFrame(), made_by)
        checks = []
        for side in SIDES:
            chosen = [each for each in found.smallest(side) if each in parts]
            sets = {**{part: [part] for part in chosen}, _ALL: chosen}
            left = torch.cat([stream - sum(parts[each] for each in some) for some in sets.values()])
            changes = []
            for norms in (scales, {}):
                with held(norms):
                    q, k = asked.chosen(reading.of(left))
                pair = (q, clean[1]) if side == "query" else (clean[0], k)
                changes.append((asked.log_odds(*pair) - whole).flatten().tolist())
            by_part = found.by_part(side) * found.log_odds
            predicted = [-by_part[some].sum() for some in sets.values()]
            checks += zip([side] * len(sets), sets, predicted, *changes, strict=True)
    return replace(found, checks=pd.DataFrame(checks, columns=_CHECKS))


class _Asked:
    """One head, query and key, and the other keys that the query sees.

    Attributes:
        query, key: Positions.
        attention: Probability that the query puts on the key.
        alibi: What ALiBi adds to the log-odds and to the score of the key; None without it.
        softcap: Cap of the scores, or None.
    """

    def __init__(
        self, model: Model, attention: FromQK, head: Head, query: int, key: int | None
    ) -> None:
        length, device = attention.q.shape[1], attention.q.device
        self._head, self._kv = head.head, head.head // (attention.n_heads // attention.k.shape[2])
        self._scale, self.softcap = attention.scale, attention.softcap
        self.query = _place("query", query, length)
        places, window = torch.arange(length, device=device), model.windows[head.layer] or length
        visible = (places - self.query).abs() < window
        if model.direction == "causal":
            visible = (places <= self.query) & within(window, places[self.query], places)
        q = attention.q.flatten(2, 3)[0, self.query, head.head]
        scores = self._scale * (attention.k[0, :, self._kv] @ q)
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        bias = torch.zeros_like(scores)
        if attention.slopes is not None:
            bias = attention.slopes[head.head] * (places - self.query).to(scores)
        scores = (scores + bias).where(visible, -torch.inf)
        self.key = int(scores.argmax()) if key is None else _place("key", key, length)
        self._others = (visible & (places != self.key)).nonzero().flatten()
        if not visible[self.key] or not len(self._others):
            seen = visible.nonzero().flatten().tolist()
            raise InputError(
                f"key must be one of at least two that query {self.query} sees, got {self.key}:"
                f" it sees {seen}"
            )
        lse = attention.lse[0, head.head, self.query]  # With learned sinks.
        lse = scores.logsumexp(-1) if lse.isnan() else lse
        self.attention = float((scores[self.key] - lse).exp())
        both = float(bias[self.key] - bias[self._others].mean()), float(bias[self.key])
        self.alibi = both if attention.slopes is not None else (None, None)

    def chosen(self, read: QKV) -> tuple[Float[Tensor, "row d"], Float[Tensor, "row pos d"]]:
        """The query, and the keys that the head reads, of each row."""
        return read.q[:, self._head, self.query].double(), read.k[:, self._kv].double()

    def score(self, q: Float[Tensor, "a d"], k: Float[Tensor, "b pos d"]) -> Float[Tensor, "a b"]:
        """The score of the key, of each query with each row of keys."""
        return self._scale * q @ k[:, self.key].mT

    def log_odds(
        self, q: Float[Tensor, "a d"], k: Float[Tensor, "b pos d"]
    ) -> Float[Tensor, "a b"]:
        """The mean log-odds of the key against each other key."""
        return self._scale * q @ (k[:, self.key] - k[:, self._others].mean(1)).mT


def _table(parts: list[str], numbers: Float[Tensor, "a b"], alibi: float | None) -> pd.DataFrame:
    table = pd.DataFrame(numbers.cpu().numpy(), parts, parts)
    if alibi is not None:
        table.loc["position"] = table["position"] = 0.0
        table.loc["position", "position"] = float(alibi)
    return table.rename_axis(index=_PARTS[0], columns=_PARTS[1])


def _side(side: str) -> str:
    if side not in SIDES:
        raise InputError(f"side must be one of {', '.join(SIDES)}, got {quoted(side)}")
    return side


def _place(name: str, place: int, length: int) -> int:
    if not -length <= place < length:
        raise InputError(f"{name} must be from {-length} to {length - 1}, got {place}")
    return place % length


def _scales(model: Model, layer: int, reading: Reading) -> Held:
    """The norms between the stream and a layer's queries and keys, with their scales in the run."""
    calls: dict[nn.Module, list[Call]] = {}

    def record(module: nn.Module, args: Any, options: Any, output: Tensor) -> None:
        calls.setdefault(module, []).append(Call(args, options, output))

    with ExitStack() as hooks:
        for module in norms_in(layer_modules(model.plain)[layer]):
            hooks.enter_context(module.register_forward_hook(record, with_kwargs=True))
        reading.of(reading.stream)
    norms: dict[nn.Module, tuple[Norm, Iterator[Tensor]]] = {}
    for module, seen in calls.items():
        norm = Norm(module, torch.ones_like(seen[0].read.flatten(0, -2)[0]))
        scales = [norm.scale(call.read.float(), call.gave.float())[..., None] for call in seen]
        norms[module] = norm, itertools.cycle(scales)
    return norms


def _parts(run: Linear, layer: int) -> dict[str, Float[Tensor, "1 pos d_model"]]:
    """What each part adds to the stream that `layer` reads, with the scales of norms frozen."""
    start = next(iter(run.streams.values()))
    others = [(i, x) for i, x in run.others if i < layer]
    written = [(W_O, z, x) for W_O, i, z, x in run.written if i < layer]
    heads = {i: z for i, z in run.heads.items() if i < layer}
    at = [start, *heads.values(), *(x for _, x in others), *(x for *_, x in written)]
    maps = iter(run.carried(layer, [*at, *(y for _, y in run.normed)]))
    found = {"embedding": next(maps)(start.detach()).float(), "biases": torch.zeros_like(start)}
    for i, z in heads.items():
        apart = torch.eye(z.shape[2]).to(z)[:, None, None, :, None] * z.detach()
        for head, part in enumerate(next(maps)(apart).float()):
            found[str(Head(i, head))] = part
    for i, x in others:
        part = next(maps)(x.detach()).float()
        found[f"L{i} MLP"] = found.get(f"L{i} MLP", 0) + part
    for W_O, z, x in written:
        found["biases"] = found["biases"] + next(maps)(bias_of(W_O, z).expand_as(x)).float()
    for module, y in run.normed:
        carried = next(maps)
        if module in run.norms:  # The stream passes it.
            bias = run.norms[module].bias
            found["biases"] = found["biases"] + carried(bias.to(y.dtype).expand_as(y)).float()
    return found
