"""Tasks and metrics: pairs of prompts, their answers, and what a model makes of them."""

import json
import re

import pytest
import torch
import transformers
from tiny_models import tiny
from tokenizers import Tokenizer, models, pre_tokenizers

import interp
from interp.effects import tasks, templates
from interp.effects.metrics import last, loss, probability
from interp.effects.tasks import Task

NAMES = ("ioi", "agreement", "pronouns", "successors", "capitals", "repeats")


def words_of(module) -> list[str]:
    """Every word and mark in the texts of a module, the plural of each too."""
    texts = [v for v in vars(module).values() if isinstance(v, str | tuple)]
    joined = " ".join(" ".join(t) if isinstance(t, tuple) else t for t in texts[:] if t)
    words = set(re.findall(r"[A-Za-z]+|[^\sA-Za-z]", joined))
    return sorted(words | {f"{word}s" for word in words} | {"is", "are", "she", "he", "Words"})


@pytest.fixture(scope="module")
def model() -> interp.Model:
    """A random model that knows the words of the templates, and `</s>` for all others."""
    words = dict.fromkeys(["</s>", *words_of(templates), "the"])
    vocabulary = {word: i for i, word in enumerate(words)}
    own = Tokenizer(models.WordLevel(dict(vocabulary), unk_token="</s>"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=own, unk_token="</s>", eos_token="</s>"
    )
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    return interp.load_model(tiny("llama", vocab_size=len(vocabulary), **ends), fast)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_have_equal_lengths_and_answers_of_one_token(model, name):
    task = getattr(interp.tasks, name)(model, 9, seed=1)
    assert task.name == name
    assert len(task) == len({*zip(task.clean, task.corrupted)}) == 9
    assert task == getattr(tasks, name)(model, 9, seed=1)
    assert task.clean != getattr(tasks, name)(model, 9, seed=2).clean
    clean, corrupted = (model.to_tokens(list(each)) for each in (task.clean, task.corrupted))
    assert torch.equal(clean < 0, corrupted < 0)
    assert ((clean != corrupted).sum(-1) > 0).all()
    assert not (clean == 0).any()
    for ids, texts in ((task.right_ids, task.right), (task.wrong_ids, task.wrong)):
        assert [f" {text}" for text in model.texts_of(torch.tensor(ids))] == [*texts]
    assert f"{name}: 9 pairs" in repr(task)


def test_the_corrupted_prompt_makes_the_wrong_answer_right(model):
    """By the rule of each task, read from its prompts."""
    for clean, corrupted, right, wrong in rows(interp.tasks.ioi(model, 8)):
        for text, answer in ((clean, right), (corrupted, wrong)):
            names = [n for n in text.replace(",", "").split() if n in NAMES_OF_PEOPLE]
            assert len(names) == 3
            assert names.count(answer.strip()) == 1
    for clean, corrupted, right, wrong in rows(interp.tasks.agreement(model, 8)):
        for text, answer in ((clean, right), (corrupted, wrong)):
            subject = re.split(" (?:near|behind|beside|with) ", text)[0].split()[-1]
            is_many = subject in ("children", "men", "women") or subject.endswith("s")
            assert answer == (" are" if is_many else " is")
    for clean, corrupted, right, wrong in rows(interp.tasks.successors(model, 8)):
        for text, answer in ((clean, right), (corrupted, wrong)):
            listed = text.split(":")[1].replace(",", "") + answer
            assert any(listed.strip() in series for series in templates._SERIES)
    for clean, corrupted, right, wrong in rows(interp.tasks.capitals(model, 8)):
        for text, answer in ((clean, right), (corrupted, wrong)):
            country = re.search(r"capital of (\w+)", text)[1]
            assert f"{country}{answer}" in " ".join(templates._CAPITALS.split())
    for clean, corrupted, right, wrong in rows(interp.tasks.repeats(model, 8)):
        for text, answer in ((clean, right), (corrupted, wrong)):
            words = text.split()
            assert words[words.index(words[-1]) + 1] == answer.strip()
    for clean, corrupted, right, wrong in rows(interp.tasks.pronouns(model, 8)):
        for text, answer in ((clean, right), (corrupted, wrong)):
            is_she = any(word.strip(",") in templates._WOMEN.split() for word in text.split())
            assert answer == (" she" if is_she else " he")


NAMES_OF_PEOPLE = {*templates._WOMEN.split(), *templates._MEN.split()}


def rows(task: Task) -> list[tuple[str, str, str, str]]:
    return [*zip(task.clean, task.corrupted, task.right, task.wrong)]


def test_the_share_that_a_model_solves_is_counted_on_its_own_logits(model, caplog):
    task = interp.tasks.ioi(model, 20)
    wins = []
    for clean, right, wrong in zip(task.clean, task.right_ids, task.wrong_ids):
        with torch.no_grad():
            logits = model.plain(model.to_tokens(clean)).logits[0, -1]
        wins.append(bool(logits[right] > logits[wrong]))
    assert task.solved(model) == pytest.approx(sum(wins) / 20)
    assert 0 < sum(wins) < 15
    assert f"solves only {5 * sum(wins)} % of ioi (20 pairs)" in caplog.text


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_your_own_pairs_are_read_and_checked(model, tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    pairs = [
        ["Mary, went to the store", "John, went to the store", " she", " he"],
        ["the key", "the keys", " is", " are"],
    ]

    def written(pairs):
        if suffix == ".jsonl":
            lines = [json.dumps(dict(zip(tasks.Pair._fields, pair))) for pair in pairs]
        else:
            quoted = [",".join(f'"{text}"' for text in pair) for pair in pairs]
            lines = [",".join(tasks.Pair._fields), *quoted]
        path.write_text("\n".join(lines), encoding="utf-8")
        return interp.tasks.from_file(model, path)

    task = written(pairs)
    assert rows(task) == [tuple(pair) for pair in pairs]
    assert task.name == "mine"
    for changed, words in (
        (["the key", "the key is", " is", " are"], "got 2 and 3 in pair 1: from token 2 on"),
        (["the key", "the key", " is", " are"], "clean and corrupted must differ"),
        (["the key", "the keys", " is", " is"], "right and wrong must differ"),
        (["the key", "the keys", " is he", " is"], "answer must be a single token"),
        (["the key", "the keys", " zebra", " is"], "answer must be a single token"),
    ):
        with pytest.raises(interp.InputError, match=words):
            written([pairs[0], changed])
    lines = {".jsonl": '{"clean": "x"}', ".csv": "clean,corrupted\nthe,key"}
    path.write_text(lines[suffix], encoding="utf-8")
    with pytest.raises(interp.InputError, match="must be pairs with clean, corrupted"):
        interp.tasks.from_file(model, path)


def test_what_a_model_cannot_be_asked_is_refused(model):
    with pytest.raises(interp.InputError, match="n must be at most 0 for ioi"):
        interp.tasks.ioi(
            interp.load_model(
                tiny("llama"),
                model.tokenizer.__class__(
                    tokenizer_object=Tokenizer(models.WordLevel({"</s>": 0, "the": 1}, "</s>")),
                    unk_token="</s>",
                    eos_token="</s>",
                ),
            )
        )
    with pytest.raises(interp.InputError, match="n must be greater"):
        interp.tasks.ioi(model, 0)
    for given in ({}, {"right": [1]}, {"right": "a", "wrong": "b"}):
        with pytest.raises(interp.InputError, match="answers must be those of a task"):
            interp.logit_difference(**given)
    with pytest.raises(interp.InputError, match="as many"):
        interp.logit_difference(right=[1, 2], wrong=[3])
    with pytest.raises(interp.InputError, match="answers must be token ids, got ' Mary'"):
        interp.logit_difference(right=[" Mary"], wrong=[" John"])(
            torch.zeros(1, 1, 9), torch.tensor([[1]])
        )


def test_metrics_read_the_logits_after_the_last_token(model):
    logits = torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, -1, -1]])
    rows = torch.stack([logits[0, 3], logits[1, 1]])
    assert torch.equal(last(logits, tokens), rows)
    chances = rows.softmax(-1)[[0, 1], [7, 9]]
    assert torch.allclose(probability(right=[7, 9])(logits, tokens), chances)
    assert torch.allclose(loss(right=[7, 9])(logits, tokens), -chances.log())
    mary, john = (model.tokenizer.convert_tokens_to_ids(name) for name in ("Mary", "John"))
    named = interp.logit_difference(right=[" Mary"] * 2, wrong=[" John"] * 2).bound(model)
    assert named.answers == ((mary, mary), (john, john))
    logits = torch.randn(2, 4, model.n_embeddings)
    expected = torch.stack(
        [logits[0, 3, mary] - logits[0, 3, john], logits[1, 1, mary] - logits[1, 1, john]]
    )
    assert torch.allclose(named(logits, tokens), expected)


@pytest.mark.real_model
def test_the_default_model_solves_every_task(real_model):
    for name in NAMES:
        assert getattr(interp.tasks, name)(real_model, 8).solved(real_model) > 0.8, name
