"""Metrics: one number for each prompt, from the logits of a run.

A metric is any function of `(logits [batch, pos, id], tokens [batch, pos])` that returns `[batch]`.
`tokens` are padded with -1 on the right; logits there are NaN. The metrics here read the logits
after each prompt's last token only. They say so with the attribute `last_only`: the model then
computes no other logits, and `logits` is `[batch, 1, id]`. A metric with the attribute `reads`, the
number of a layer, gets the layer's attention (`interp.kinds.mass.FromQK`) in place of logits, and
prompts without padding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.effects.ablate import all_heads, parsed_heads
from interp.errors import InputError, quoted
from interp.heads import AnyHead, Head
from interp.kinds.builtin import as_kinds
from interp.kinds.kind import Kind
from interp.kinds.mass import FromQK
from interp.kinds.scores import Thresholds, ask
from interp.kinds.targets import NONE
from interp.models import Model
from interp.models.stream import streams
from interp.scan.record import Record

Metric = Callable[[Any, Tensor], Tensor]
"""A function of `(logits [batch, pos, id], tokens [batch, pos])` that returns `[batch]`."""

Answers = Sequence[str | int]
"""One answer a prompt: a text that is a single token, such as ` Mary`, or a token id."""


@runtime_checkable
class Answered(Protocol):
    """A task, as far as metrics need it: the ids of the answers to its clean prompts."""

    @property
    def right_ids(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def wrong_ids(self) -> tuple[int, ...]: ...  # noqa: D102


@dataclass(frozen=True)
class AnswerMetric:
    """A metric of the logits after each prompt's last token, from the answers of each prompt.

    Attributes:
        name: Name of the metric, with its unit.
        formula: Function of those logits `[batch, id]` and of the ids of each prompt's answers
            (`[batch]` of the right ones, then of the wrong ones if there are some).
        answers: Right answers and, if the formula needs them, wrong ones; texts until `bound`.
    """

    name: str
    formula: Callable[..., Float[Tensor, " batch"]]
    answers: tuple[tuple[str | int, ...], ...]
    last_only = True

    def __call__(
        self, logits: Float[Tensor, "batch pos id"], tokens: Int[Tensor, "batch _"]
    ) -> Float[Tensor, " batch"]:
        """The metric of each prompt."""
        at_last = last(logits, tokens).float()
        for answers in self.answers:
            if len(answers) != len(at_last):
                got = f"got {len(answers)} for {len(at_last)} prompts"
                raise InputError(f"answers must be one for each prompt, {got}")
            if texts := [answer for answer in answers if isinstance(answer, str)]:
                got = f"got {quoted(texts[0])}: give ids, or use bound(model) first"
                raise InputError(f"answers must be token ids, {got}")
        ids = (torch.tensor(answers, device=at_last.device) for answers in self.answers)
        return self.formula(at_last, *ids)

    def bound(self, model: Model) -> "AnswerMetric":
        """The metric with the token ids of its answers in `model`."""
        ids = (tuple(answer_id(model, answer) for answer in each) for each in self.answers)
        return replace(self, answers=tuple(ids))


def last(
    logits: Float[Tensor, "batch pos id"], tokens: Int[Tensor, "batch _"]
) -> Float[Tensor, "batch id"]:
    """The logits after each prompt's last token."""
    if logits.shape[1] == 1:
        return logits[:, 0]
    at = (tokens != NONE).sum(-1).to(logits.device) - 1
    return logits[torch.arange(len(logits), device=logits.device), at]


def answer_id(model: Model, answer: str | int, after: str = "the") -> int:
    """The id of an answer that is a single token where it follows the text `after`.

    Raises:
        InputError: If the answer is not one token there, or unknown to the tokenizer.
    """
    if not isinstance(answer, str):
        return int(answer)
    prompt, whole = (model.to_tokens(text)[0].tolist() for text in (after, after + answer))
    if whole[:-1] != prompt or whole[-1] in model.special:  # Words that are unknown are special.
        pieces = model.texts_of(torch.tensor(whole))
        raise InputError(
            f"answer must be a single token, with the space before it, got {quoted(answer)}: the"
            f" prompt with it ends in the tokens {quoted(pieces[-4:])}"
        )
    return whole[-1]


def logit_difference(
    task: Answered | None = None, *, right: Answers | None = None, wrong: Answers | None = None
) -> AnswerMetric:
    """Metric: the logit of the right answer minus that of the wrong one, after the last token.

    Args:
        task: Task whose answers count.
        right: Without a task, the right answer of each prompt: texts such as ` Mary`, or ids.
        wrong: Without a task, the wrong answer of each prompt.

    Returns:
        A metric in logits: above 0 the model prefers the right answer.

    Raises:
        InputError: If there is neither a task nor both kinds of answers, or not as many of each.

    Example:
        >>> metric = logit_difference(right=[2], wrong=[0])
        >>> metric(torch.tensor([[[1.0, 0.0, 4.0]]]), torch.tensor([[5]]))
        tensor([3.])
    """
    return AnswerMetric("logit difference", _difference, _answers(task, right, wrong))


def loss(task: Answered | None = None, *, right: Answers | None = None) -> AnswerMetric:
    """Metric: minus the log-probability of the right answer, in nats."""
    return AnswerMetric("loss, nats", _loss, _answers(task, right)[:1])


def probability(task: Answered | None = None, *, right: Answers | None = None) -> AnswerMetric:
    """Metric: the probability of the right answer, in [0, 1]."""
    return AnswerMetric("probability", _probability, _answers(task, right)[:1])


def divergence(reference: Float[Tensor, "batch id"]) -> AnswerMetric:
    """Metric: the KL divergence from each prompt's reference distribution, in nats.

    `sum p log(p / q)`, p from the reference logits after the last token and q from the run: 0 where
    both are the same. For that of the clean run, the reference is
    `interp.effects.replaced.last_logits(model, model.to_tokens(clean))`.

    Example:
        >>> metric = divergence(torch.tensor([[0.0, 0.0]]))
        >>> metric(torch.tensor([[[2.0, 2.0]]]), torch.tensor([[5]]))
        tensor([0.])
    """
    return AnswerMetric("KL divergence, nats", partial(_divergence, reference), ())


@dataclass(frozen=True)
class AttentionMass:
    """A metric of one head's attention on the targets of a kind, from `attention_mass`.

    Attributes:
        kind: The kind.
        head: The head.
        model: Model whose windows and special tokens decide what counts; None until `bound`.
    """

    kind: Kind
    head: Head
    model: Model | None = None

    @property
    def name(self) -> str:
        """Name of the metric."""
        return f"attention of {self.head} on {self.kind.name} targets"

    @property
    def reads(self) -> int:
        """Layer whose attention is read."""
        return self.head.layer

    def __call__(
        self, attention: FromQK, tokens: Int[Tensor, "batch pos"]
    ) -> Float[Tensor, " batch"]:
        """The metric of each prompt."""
        if self.model is None or not isinstance(attention, FromQK):
            raise InputError(f"metric must be of logits here, got {self.name}")
        asked = ask(
            tokens,
            special=self.model.special,
            window=self.model.windows[self.reads],
            thresholds=Thresholds(),
            kinds={self.kind.name: self.kind},
            texts=[self.model.texts_of(row) for row in tokens],
            statistics=False,
        )
        keys = asked.keys[self.kind.name]
        counted = (keys != NONE).any(-1) & asked.fit
        if not counted.any(-1).all():
            row = int((~counted.any(-1)).nonzero()[0])
            texts = quoted(" ".join(self.model.texts_of(tokens[row])))
            raise InputError(f"prompts must have targets of {self.kind.name}, got none in {texts}")
        masses = attention.mass(keys)[:, self.head.head]
        return torch.where(counted, masses, 0).sum(-1) / counted.sum(-1)

    def bound(self, model: Model) -> "AttentionMass":
        """The metric on `model`."""
        if not streams(model):
            raise InputError(f"model must be one whose attention can be streamed, got {model.name}")
        parsed_heads("head", [self.head], all_heads(model), model.name)
        return replace(self, model=model)


def attention_mass(kind: str | Kind, head: AnyHead) -> AttentionMass:
    """Metric: how much of a head's attention is on the targets of a kind, in [0, 1].

    The mean over the queries of a prompt that have targets, as in a scan. It shows what makes a
    head attend: for `interp.patch`, `interp.ablate` and `interp.path_effects`.

    Args:
        kind: Kind of head, as for `interp.scan_heads`; not `sink`, whose targets depend on the
            attention.
        head: Head to measure.

    Raises:
        InputError: If there is no such kind or head.

    Example:
        >>> import interp
        >>> toy = interp.build_circuit("absolute", vocabulary=16, length=16)
        >>> mass = attention_mass("induction", "L1H5")
        >>> effects = interp.ablate(toy, [[0, 5, 6, 7, 5]], mass, how="zero")
        >>> effects.strongest(1)["name"].item()  # Without the previous-token head it is lost.
        'L0H3'
    """
    first, *more = as_kinds(kind).values()
    if more or first.name == "sink":
        raise InputError(f"kind must be one whose targets the tokens decide, got {quoted(kind)}")
    return AttentionMass(first, Head.parse(head))


def bound(metric: Any, model: Model) -> Metric:
    """The metric, with the ids of its answers in this model."""
    return metric.bound(model) if isinstance(metric, AnswerMetric | AttentionMass) else metric


def name_of(metric: Any) -> str:
    """The name of a metric; of your own, that of its function."""
    return str(getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__)))


def record_of(model: Model, metric: Metric, what: str, unit: str, **more: Any) -> dict[str, Any]:
    """How a map was made: what was replaced by what, the unit of an effect, the metric."""
    ordinary = "an ordinary head: the median effect and 1.96 robust deviations to either side"
    made_by: dict[str, Any] = {"what": what, "unit": unit, "metric": name_of(metric)}
    made_by |= {"interval": "95 % of 2000 resamples of the prompts", "random": ordinary}
    return Record.of_model(model, **{**made_by, **more})


def _difference(logits: Tensor, right: Tensor, wrong: Tensor) -> Tensor:
    pairs = logits.gather(-1, torch.stack([right, wrong], -1))
    return pairs[:, 0] - pairs[:, 1]


def _divergence(reference: Tensor, logits: Tensor) -> Tensor:
    if reference.shape != logits.shape:
        raise InputError(
            f"reference must be logits {tuple(logits.shape)}, got {tuple(reference.shape)}"
        )
    p, q = reference.to(logits).log_softmax(-1), logits.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def _loss(logits: Tensor, right: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(-1, right[:, None])[:, 0]


def _probability(logits: Tensor, right: Tensor) -> Tensor:
    return (-_loss(logits, right)).exp()


def _answers(task: Any, *answers: Any) -> tuple[tuple[str | int, ...], ...]:
    named = [each for each in answers if each is not None]
    if task is not None and not named:
        return task.right_ids, task.wrong_ids
    if task is not None or len(named) != len(answers) or any(isinstance(a, str) for a in named):
        raise InputError("answers must be those of a task, or lists: one for each prompt")
    if len({len(each) for each in named}) != 1:
        raise InputError(f"right and wrong must be as many, got {[len(each) for each in named]}")
    return tuple(tuple(each) for each in named)
