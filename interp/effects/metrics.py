"""Metrics: one number for each prompt, from the logits of a run.

A metric is any function of `(logits [batch, pos, id], tokens [batch, pos])` that returns `[batch]`.
`tokens` are padded with -1 on the right; logits there are NaN. The metrics here read the logits
after each prompt's last token only. They say so with the attribute `last_only`: the model then
computes no other logits, and `logits` is `[batch, 1, id]`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError, quoted
from interp.kinds.targets import NONE
from interp.models import Model
from interp.scan.record import Record

Metric = Callable[[Tensor, Tensor], Tensor]
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


def bound(metric: Any, model: Model) -> Metric:
    """The metric, with the ids of its answers in this model."""
    return metric.bound(model) if isinstance(metric, AnswerMetric) else metric


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
