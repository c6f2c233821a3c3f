"""An exam for methods that find circuits: small models whose circuits are known.

Each `Question` is a model with pairs of prompts and its true edges. `exam` scores the edges by each
method and says how well the scores tell true edges from others. The models:

- **built**: induction circuits by construction (`interp.circuits`): absolute and rotary positions,
  several sizes, a blurred previous-token head, wrong copies, shared keys and values;
- **composed**: several circuits in one model, heads that share the work, a layer in between;
- **distracted**: the circuit among heads with random weights that attend and write, and heads that
  attend like the circuit's own and write where nothing reads;
- **broken**: the circuit next to a second one that lacks a part, and does nothing;
- **backup**: three layers, with an induction head that is silent as long as the first one works;
- **trained**: two layers of attention, trained here on rows that repeat.

**Truth.** In a built model an edge is true if it carries what the answer is made of: the previous
token to the previous-token head's values, from there to the induction head's keys, the current
token to its queries, the answer to its values, and its output to the logits. Positions and BOS are
the same in both prompts, so no other edge carries a difference. In a trained model an edge is true
if the metric falls by more than `LEAST` of the difference between clean and corrupted prompts when
this edge alone carries the corrupted output (`exact_effects`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from interp.circuits.build import model_of, smallest
from interp.circuits.training import Recipe, Run
from interp.effects.backups import find_backups
from interp.effects.circuit import Pairs
from interp.effects.metrics import AnswerMetric, logit_difference
from interp.heads import Head
from interp.models import Model, load_model
from interp.models.made import attention_only
from interp.weights.folded import composition_scores

LEAST = 0.05
"""Share of the metric's difference that a true edge of a trained model carries."""

CHANGES = {
    "period": "other tokens, which repeat after one token less: the answer is at another place",
    "tokens": "other tokens, which repeat after as many: the answer is at the same place",
    "key": "the token before the answer's first copy is another one, so that nothing repeats it",
}
"""What differs in a corrupted prompt; a clean one has tokens that repeat after a few."""

_PAIRS, _PERIOD, _LENGTH = 8, 8, 13
"""Pairs of prompts, the period of clean ones, and tokens after BOS."""

Edge = tuple[str, str, str]
"""Source, target and path, as in the table of a `Circuit`."""


@dataclass(frozen=True, eq=False)
class Question:
    """A model whose circuit is known, and a task.

    Attributes:
        name: Name of the model.
        group: How it was made, such as `built`.
        model: The model.
        clean: Token ids of the clean prompts.
        corrupted: Token ids of the corrupted prompts.
        right: Answer to each clean prompt.
        wrong: Answer to each corrupted prompt.
        truth: True edges; None if exact patching decides.
        backups: Heads that replace another once it is gone.
    """

    name: str
    group: str
    model: Model
    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    right: tuple[int, ...]
    wrong: tuple[int, ...]
    truth: frozenset[Edge] | None
    backups: frozenset[Head] = frozenset()

    @property
    def metric(self) -> AnswerMetric:
        """The logit of the right answer minus that of the wrong one."""
        return logit_difference(right=self.right, wrong=self.wrong)

    @cached_property
    def pairs(self) -> Pairs:
        """The edges of the model, and runs of the prompts."""
        return Pairs(self.model, self.clean, self.corrupted, self.metric)

    @cached_property
    def edges(self) -> list[Edge]:
        """The edges in the order of scores."""
        wiring = self.pairs.wiring
        return [(wiring.sources[i], *wiring.targets[j]) for i, j in wiring.edges.nonzero().tolist()]

    @cached_property
    def is_true(self) -> Bool[Tensor, " edge"]:
        """Whether each edge is true."""
        if self.truth is None:
            exact = exact_effects(self.pairs)
            return exact.abs() > LEAST * (self.pairs.clean - self.pairs.corrupted).mean().abs()
        if unknown := self.truth - set(self.edges):
            raise AssertionError(f"{self.name} has no edge {min(unknown)}")
        return torch.tensor([edge in self.truth for edge in self.edges])


def exact_effects(pairs: Pairs) -> Float[Tensor, " edge"]:
    """How much the metric falls when one edge alone carries the corrupted output, for each edge."""
    number = int(pairs.wiring.edges.sum())
    effects = torch.zeros(number, dtype=torch.double)
    for rows, clean, corrupted in pairs.groups:
        others, whole = pairs.wiring.run(corrupted).outputs, pairs.measured(rows, clean)[1]
        pairs.clean[rows] = whole.double()
        pairs.corrupted[rows] = pairs.measured(rows, corrupted)[1].double()
        for edge in range(number):
            kept = pairs.wiring.edges & ~pairs.mask(torch.tensor([edge]))
            after = pairs.measured(rows, clean, kept=kept, others=others)[1]
            effects[edge] += (whole - after).double().sum()
    return effects / len(pairs.tokens)


class Draft:
    """A built circuit that is edited before it becomes a model.

    Args:
        positions: `absolute` or `rotary`.
        settings: Further arguments, as for `interp.build_circuit`.

    Attributes:
        layers: Weights of the layers.
        circuits: Pairs of a previous-token head and an induction head that reads it.
        backups: Heads that replace another.
    """

    def __init__(
        self, positions: str, vocabulary: int = 32, length: int = 16, **settings: Any
    ) -> None:
        settings = {"kv_heads": 4 if positions == "rotary" else None, **settings}
        self.plan, sharpness = smallest(positions, vocabulary, length, **settings)
        self.layers = self.plan.layers(sharpness)
        self.circuits = [(self.plan.previous_head, self.plan.induction_head)]
        self.backups: list[Head] = []
        self._made = {"positions": positions, "sharpness": sharpness}
        self._used = {self.plan.previous_head, self.plan.induction_head}

    def copy(self, head: Head, layer: int | None = None) -> Head:
        """Give the weights of a head to an idle one, of its layer or another."""
        layer = head.layer if layer is None else layer
        heads = (Head(layer, i) for i in range(self.plan.n_heads))
        new = next(each for each in heads if each not in self._used)
        self._used.add(new)
        for old, W in zip(self.layers[head.layer], self.layers[layer], strict=True):
            W[new.head] = old[head.head]
        return new

    def share(self, which: int) -> "Draft":
        """A second previous-token head (0) or induction head (1), which does half of the work."""
        previous, induction = self.circuits[0]
        head = self.circuits[0][which]
        new = self.copy(head)
        for each in (head, new):
            self.layers[each.layer].W_O[each.head] /= 2
        self.circuits.append((new, induction) if which == 0 else (previous, new))
        return self

    def again(self, *, previous: bool = True, match: bool = True) -> "Draft":
        """A second circuit with a space of its own for the previous token, whole or broken."""
        plan, (first, second) = self.plan, self.circuits[0]
        one, two = self.copy(first), self.copy(second)
        before = plan.spare[: plan.N]
        self.layers[one.layer].W_O[one.head, : plan.N] = plan.gamma * before
        if not previous:
            self.layers[one.layer].W_O[one.head] = 0
        layer = self.layers[two.layer]
        layer.W_K[two.head][:, plan.content] = plan.root * plan.s / plan.gamma * before.T
        if not match:
            layer.W_Q[two.head][:, plan.content] = 0
        if previous and match:
            layer.W_O[second.head] /= 2
            layer.W_O[two.head] /= 2
            self.circuits.append((one, two))
        return self

    def distract(self) -> "Draft":
        """Heads that attend like those of the circuit, and write where nothing reads."""
        for head in self.circuits[0]:
            new = self.copy(head)
            W_O = self.layers[new.layer].W_O[new.head]
            W_O[: self.plan.N] = self.plan.gamma * self.plan.spare[-self.plan.N :]
        return self

    def noise(self, size: float) -> "Draft":
        """Random weights for idle heads; each writes outputs of `size` to a stream of size 1."""
        plan = self.plan
        d, e = plan.d_model, plan.d_head

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=plan.generator, dtype=torch.double)

        for number, layer in enumerate(self.layers):
            for head in range(plan.n_heads):
                if Head(number, head) not in self._used:
                    for W in layer[:3]:
                        W[head] = drawn(d, e) / math.sqrt(d)
                    layer.W_O[head] = size * drawn(e, d) / math.sqrt(e)
        return self

    def delay(self) -> "Draft":
        """A layer of idle heads between the two of the circuit."""
        self.layers.insert(1, self.plan.idle())
        previous, induction = self.circuits[0]
        self.circuits[0] = (previous, Head(2, induction.head))
        self._used = {*self.circuits[0]}
        return self

    def back_up(self) -> "Draft":
        """A third layer with a copy of the induction head that stays silent while that one works.

        The induction head also writes a mark where it attends to another token than BOS. The copy
        adds the mark to its query's score of BOS, beyond the score of a match.
        """
        plan, first = self.plan, self.circuits[0][1]
        self.layers.append(plan.idle())
        head = self.copy(first, 2)
        mark, layer = plan.spare[0], self.layers[first.layer]
        layer.W_V[first.head][:, -1] = plan.one / plan.alpha_one - plan.mark / plan.alpha_token
        layer.W_O[first.head][-1] = plan.alpha_one * mark
        query = self.layers[2].W_Q[head.head][:, -1]
        query += _SILENCE * (plan.one @ query) * mark
        self.backups.append(head)
        return self

    def question(self, name: str, group: str, change: str = "period") -> Question:
        """The exam question of this draft; `change` is one of `CHANGES`."""
        plan, edges = self.plan, set[Edge]()
        kind = "H" if plan.kv_heads == plan.n_heads else "KV"
        for previous, induction in self.circuits:
            to, by = (
                f"L{head.layer}{kind}{plan.key_value_head(head)}" for head in (previous, induction)
            )
            edges |= {("embedding", to, "v"), (str(previous), by, "k")}
            edges |= {(str(induction), "logits", "")}
            if change != "key":
                edges |= {("embedding", str(induction), "q"), ("embedding", by, "v")}
        model = model_of(plan, self.layers, **self._made)
        prompts = _prompts(plan.vocabulary, plan.generator, change)
        return Question(name, group, model, *prompts, frozenset(edges), frozenset(self.backups))


_SILENCE = 1.3
"""Score of BOS that the mark adds to a backup head's own, in units of that."""


def _prompts(
    vocabulary: int, generator: Generator, change: str
) -> tuple[Tensor, Tensor, tuple[int, ...], tuple[int, ...]]:
    """Clean and corrupted prompts with their answers; see `CHANGES`."""
    ids = torch.stack(
        [torch.randperm(vocabulary - 1, generator=generator) + 1 for _ in range(_PAIRS)]
    )
    place = torch.arange(_LENGTH)
    clean, other = ids[:, place % _PERIOD], ids[:, -1 - place % _PERIOD]
    right, at = ids[:, _LENGTH % _PERIOD], _LENGTH % _PERIOD
    if change == "period":
        other, at = ids[:, -1 - place % (_PERIOD - 1)], _LENGTH % (_PERIOD - 1)
    wrong = ids[:, -1 - at]
    if change == "key":
        other = clean.clone()
        other[:, at - 1] = ids[:, -1]
    bos = torch.zeros(_PAIRS, 1, dtype=torch.long)
    rows = [torch.cat([bos, tokens], 1) for tokens in (clean, other)]
    return rows[0], rows[1], tuple(right.tolist()), tuple(wrong.tolist())


def trained(name: str, recipe: Recipe, steps: int) -> Question:
    """A model of two layers that is trained here; exact patching says which edges are true."""
    sizes = {"n_ids": recipe.vocabulary + 1, "n_ctx": recipe.length, "d_model": recipe.width}
    model = attention_only(**sizes, n_heads=recipe.heads, n_layers=2, seed=recipe.seed)
    run = Run(model, recipe)
    for _ in range(steps):
        run.advance()
    model.requires_grad_()
    prompts = _prompts(recipe.vocabulary + 1, Generator().manual_seed(recipe.seed), "period")
    return Question(name, "trained", load_model(model), *prompts, None)


def integrated(question: Question) -> Float[Tensor, " edge"]:
    """Edge attribution with integrated gradients, as `interp.find_circuit` does."""
    return question.pairs.scores(5).mean(0)


def one_gradient(question: Question) -> Float[Tensor, " edge"]:
    """Edge attribution patching with the gradient of the corrupted run (Syed et al. 2023)."""
    return question.pairs.scores(1, places=[0.0]).mean(0)


def nodes(question: Question) -> Float[Tensor, " edge"]:
    """Attribution patching of both ends (Nanda 2023): the smaller of the two.

    The attribution of a source is the sum of its edges, that of a target that of what it feeds.
    """
    wiring = question.pairs.wiring
    by_edge = torch.zeros(wiring.edges.shape).masked_scatter(wiring.edges, one_gradient(question))
    source = by_edge.sum(1).abs()
    target = torch.where(wiring.feeds, source, 0).amax(1)
    target[-1] = math.inf
    return torch.minimum(source[:, None], target)[wiring.edges]


def changes(question: Question) -> Float[Tensor, " edge"]:
    """How much the source differs between clean and corrupted prompts: no gradient."""
    wiring = question.pairs.wiring
    clean, corrupted = (
        wiring.run(tokens).outputs for tokens in (question.clean, question.corrupted)
    )
    assert clean is not None
    assert corrupted is not None
    size = (clean - corrupted).norm(dim=-1).mean((1, 2))
    return size[:, None].expand(wiring.edges.shape)[wiring.edges]


def composition(question: Question) -> Float[Tensor, " edge"]:
    """`interp.composition_scores` of heads; the chance level for all other edges."""
    found = composition_scores(question.model)
    frame = found.to_frame().set_index(["earlier", "later"])
    scores = []
    group = question.pairs.wiring.group
    for source, target, path in question.edges:
        layer, _, kv = target.partition("KV")
        readers = [f"{layer}H{int(kv) * group + i}" for i in range(group)] if kv else [target]
        pairs = [(source, reader) for reader in readers if (source, reader) in frame.index]
        known = [frame.at[pair, path.upper()] for pair in pairs]
        scores.append(np.nanmax([found.floor, *known]) if known else found.floor)
    return torch.tensor(scores)


def nothing(question: Question) -> Float[Tensor, " edge"]:
    """The same score for every edge: what random scores reach on average."""
    return torch.zeros(len(question.edges))


METHODS: Mapping[str, Callable[[Question], Tensor]] = {
    "find_circuit": integrated,
    "one gradient": one_gradient,
    "nodes": nodes,
    "size of the change": changes,
    "composition": composition,
    "chance": nothing,
}
"""Methods that score edges, by name."""


def ranked(scores: Tensor, is_true: Tensor) -> tuple[float, float]:
    """AUROC and average precision of the sizes of scores; equal ones count as in any order.

    Example:
        >>> ranked(torch.tensor([-3.0, 1.0, 2.0, 0.0]), torch.tensor([True, True, False, False]))
        (0.75, 0.8333333333333333)
    """
    sizes, right = scores.double().abs().numpy(), is_true.numpy()
    levels = np.unique(sizes)[::-1]
    true = np.array([0, *((sizes[right] >= level).sum() for level in levels)])
    false = np.array([0, *((sizes[~right] >= level).sum() for level in levels)])
    auroc = np.trapezoid(true / true[-1], false / false[-1])
    precision = (np.diff(true) / true[-1] * (true / np.maximum(true + false, 1))[1:]).sum()
    return float(auroc), float(precision)


def exam(
    questions: Iterable[Question] | None = None,
    methods: Mapping[str, Callable[[Question], Tensor]] = METHODS,
) -> pd.DataFrame:
    """Let methods find the circuits of models whose circuits are known.

    Args:
        questions: The models; `all_questions` if left out.
        methods: Functions that return a score for each of a question's `edges`, by name. NaN for
            all of them says that the method does not take the model.

    Returns:
        A table with a row for each model and method: `group`, `model`, `method`, `of` (`edges`, or
        `heads` for `interp.find_backups` where backups were planted), their number, `true`, how
        many are true, `auroc` and `average_precision` of the sizes of the scores, in [0, 1].

    Example:
        >>> question = Draft("absolute", vocabulary=24).question("plain", "built")
        >>> table = exam([question], {"find_circuit": integrated, "chance": nothing})
        >>> table["auroc"].round(1).tolist()
        [1.0, 0.5]
    """
    rows = []
    for question in all_questions() if questions is None else questions:
        graded = [
            (name, "edges", method(question), question.is_true) for name, method in methods.items()
        ]
        if question.backups:
            frame = find_backups(question.model, question.clean, question.metric).to_frame()
            is_backup = [Head.parse(name) in question.backups for name in frame["name"]]
            scores = torch.tensor(frame["effect"].clip(lower=0).to_numpy())
            graded.append(("find_backups", "heads", scores, torch.tensor(is_backup)))
        for name, of, scores, is_true in graded:
            known = not scores.isnan().any()
            auroc, precision = ranked(scores, is_true) if known else (math.nan, math.nan)
            row = {"group": question.group, "model": question.name, "method": name, "of": of}
            row |= {"number": len(is_true), "true": int(is_true.sum())}
            rows.append({**row, "auroc": auroc, "average_precision": precision})
    return pd.DataFrame(rows)


_SMALL: dict[str, Any] = {
    "vocabulary": 32,
    "length": 25,
    "least": 3,
    "most": 12,
    "only": 6,
    "rate": 5e-3,
}
"""Rows of the trained models, and their learning rate."""


def all_questions() -> Iterator[Question]:
    """The models of the exam."""
    for positions in ("absolute", "rotary"):
        draft = partial(Draft, positions)
        drafts = {
            "built": {
                "plain": draft(),
                "another seed": draft(seed=1),
                "20 ids": draft(vocabulary=20),
                "200 ids": draft(vocabulary=200),
                "600 ids": draft(vocabulary=600),
                "64 positions": draft(length=64),
                "blurred": draft(blur=0.3),
                "wrong copies": draft(wrong_copy=0.2),
            },
            "composed": {
                "two circuits": draft().again(),
                "two previous-token heads": draft().share(0),
                "two induction heads": draft().share(1),
                "layer between": draft().delay(),
            },
            "distracted": {
                "idle likenesses": draft().distract(),
                "noise 0.05": draft().noise(0.05),
                "noise 0.1": draft().noise(0.1),
                "noise 0.1, likenesses": draft().distract().noise(0.1),
                "noise 0.1, layer between": draft().delay().noise(0.1),
            },
            "broken": {
                "no previous-token head": draft().again(previous=False),
                "no match": draft().again(match=False),
                "no match, noise 0.1": draft().again(match=False).noise(0.1),
            },
            "backup": {
                "backup": draft().back_up(),
                "backup, seed 1": draft(seed=1).back_up(),
                "backup, noise 0.05": draft().back_up().noise(0.05),
                "backup, likenesses": draft().distract().back_up(),
            },
        }
        for group, some in drafts.items():
            for name, each in some.items():
                yield each.question(f"{positions}, {name}", group)
        yield draft().question(f"{positions}, other key", "built", "key")
        yield draft().question(f"{positions}, same place", "built", "tokens")
        noisy = draft().noise(0.1)
        yield noisy.question(f"{positions}, same place, noise 0.1", "distracted", "tokens")
    yield Draft("rotary", kv_heads=2).question("rotary, shared keys", "built")
    for heads, seed in product((2, 4), (0, 1)):
        recipe = Recipe(heads=heads, width=32, seed=seed, **_SMALL)
        yield trained(f"trained, {heads} heads of 32, seed {seed}", recipe, 1500)
