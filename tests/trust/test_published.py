"""The published heads: their table against published scores, and its comparison with a scan."""

import json
import socket
from pathlib import Path

import pytest
import torch
from huggingface_hub import try_to_load_from_cache
from places import ROOT

import interp
from interp.patterns.definitions import perfect_pattern
from interp.trust.published import EFFECT, compare_with_published, published_heads

DATA = ROOT.parent / "shared" / "data"
NEGATIVE = {interp.Head(10, 7), interp.Head(11, 10)}


def published_table(name: str) -> dict:
    """A table of scores that others have published, kept beside the repository."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not in ../shared/data")
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def stripe():
    """GPT-2 small's heat map: the mean of the stripe on [x, x]."""
    return torch.tensor(published_table("gpt2_small_arena_induction_and_ov.json")["induction_attn"])


@pytest.fixture(scope="module")
def effects():
    """By model, the direct effect on the right logit through the stripe alone."""
    models = published_table("induction_source_dla_44_models.json")["models"]
    return {name: torch.tensor(table["induction_source_dla"]) for name, table in models.items()}


@pytest.fixture(scope="module")
def ranked():
    """By model and kind, the 100 strongest heads once column 0 is taken away."""
    models = published_table("song2024_IH_PTH_top100.json")["models"]
    return {
        (model, kind): {interp.Head(layer, head): score for layer, head, score in table[kind]}
        for model, table in models.items()
        for kind in ("IH", "PTH")
    }


def heads_named(model: str, kind: str, condition: str = "") -> set[interp.Head]:
    table = published_heads(model)
    table = table[(table["kind"] == kind) & (table["condition"] == condition)]
    return {interp.Head(*where) for where in zip(table["layer"], table["head"], strict=True)}


def test_the_canonical_heads_of_gpt2_are_in_the_table():
    canonical = ["5.1", "5.5", "6.9", "7.2", "7.10"]
    assert heads_named("gpt2", "induction") == {interp.Head.parse(name) for name in canonical}
    assert heads_named("gpt2", "anti-induction") == NEGATIVE


def test_every_row_names_its_source_with_a_year_and_a_kind_that_a_label_can_have():
    table = published_heads()
    assert table["source"].str.contains(r"\b20\d\d\b").all()
    assert set(table["kind"]) <= {*interp.kinds.builtin.LABELS.values(), "anti-induction"}
    assert not table.duplicated(["model", "layer", "head", "kind"]).any()


def test_the_stripe_alone_does_not_separate_negative_heads_from_induction_heads(stripe):
    passing = {interp.Head(*where) for where in (stripe >= 0.4).nonzero().tolist()}
    assert passing > NEGATIVE | heads_named("gpt2", "induction")
    assert len(passing) == 12


@pytest.mark.parametrize(
    ("model", "effects_as"),
    [("gpt2", "gpt2-small"), ("gpt2-xl", "gpt2-xl"), ("pythia-6.9b", "pythia-6.9b")],
)
def test_the_signs_in_the_table_are_those_measured(effects, model, effects_as):
    effect = effects[effects_as]
    assert all(effect[head] > 0 for head in heads_named(model, "induction"))
    assert all(effect[head] < 0 for head in heads_named(model, "anti-induction"))


@pytest.mark.parametrize(
    ("model", "ranked_as"),
    [
        ("gpt2", "gpt2"),
        ("gpt2-xl", "gpt2-xl"),
        ("pythia-6.9b", "pythia-7b"),
        ("llama-2-7b", "llama2-7b"),
    ],
)
def test_the_heads_in_the_table_rank_high_where_all_heads_were_measured(ranked, model, ranked_as):
    matching, previous = ranked[ranked_as, "IH"], ranked[ranked_as, "PTH"]
    assert all(matching[head] > 0.7 for head in heads_named(model, "induction"))
    assert all(previous[head] > 0.5 for head in heads_named(model, "previous token"))


def test_heads_named_under_a_condition_do_not_match_on_random_repeats(stripe):
    conditional = heads_named("gpt2", "induction", "on IOI prompts")
    assert conditional == {interp.Head(5, 8), interp.Head(5, 9)}
    assert all(stripe[head] < 0.05 for head in conditional)


TOKENS = torch.cat([torch.zeros(1), torch.arange(1, 21).repeat(2)]).long()[None]
PLANTED = {"induction": "induction", "previous token": "previous_token"} | {
    "duplicate token": "duplicate_token"
}


def scan_of_planted_heads(n_layers: int = 12, **made_by: str) -> interp.HeadScan:
    """As many heads as GPT-2 small has, those that papers name doing what papers say."""
    even = torch.ones(TOKENS.shape[1], TOKENS.shape[1]).tril()
    patterns = (even / even.sum(-1, keepdim=True)).repeat(n_layers, 1, 12, 1, 1)
    for label, kind in PLANTED.items():
        for layer, head in heads_named("gpt2", label):
            if layer < n_layers:
                patterns[layer, :, head] = perfect_pattern(TOKENS, kind)[:, 0]
    return interp.HeadScan.of(interp.classify_heads(patterns, TOKENS), made_by=made_by)


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2", "gpt2-small", "GPT2"])
def test_planted_heads_agree(name):
    table = compare_with_published(scan_of_planted_heads(model=name))
    planted = table[table["kind"].isin(PLANTED) & (table["condition"] == "")]
    assert len(planted) == len(table) - 4
    assert planted["agrees"].all()
    assert planted["score"].tolist() == pytest.approx([1] * len(planted))
    assert (planted["label"] == planted["kind"]).all()


def test_what_is_named_under_a_condition_neither_agrees_nor_disagrees():
    table = compare_with_published(scan_of_planted_heads(model="gpt2"))
    conditional = table[table["condition"] != ""]
    assert list(conditional["name"]) == ["L5H8", "L5H9"]
    assert conditional["agrees"].isna().all()
    assert conditional["score"].notna().all()


def test_a_head_that_does_something_else_disagrees():
    scan = scan_of_planted_heads(model="gpt2")
    names, labels = scan.frame["name"], scan.frame["labels"]
    other = [["sink"] if name == "L5H1" else label for name, label in zip(names, labels)]
    table = compare_with_published(
        interp.HeadScan(scan.frame.assign(labels=other), scan.made_by)
    ).set_index("name")
    assert list(table.index[table["agrees"].eq(False).fillna(False)]) == ["L5H1"]
    assert table.loc["L5H1", "labels"] == ["sink"]


def test_a_negative_head_is_judged_by_a_scan_that_knows_the_sign_and_by_no_other():
    scan = scan_of_planted_heads(model="gpt2")
    negative = {str(head) for head in NEGATIVE}
    blind = compare_with_published(
        interp.HeadScan(scan.frame.drop(columns=EFFECT, errors="ignore"), scan.made_by)
    )
    assert blind[blind["name"].isin(negative)]["agrees"].isna().all()

    labels = [
        ["anti-induction"] if name == "L10H7" else ["induction"] for name in scan.frame["name"]
    ]
    frame = scan.frame.assign(labels=labels, **{EFFECT: -1.0})
    seeing = compare_with_published(interp.HeadScan(frame, scan.made_by)).set_index("name")
    assert seeing.loc["L10H7", "agrees"]
    assert not seeing.loc["L11H10", "agrees"]
    assert seeing.loc["L10H7", EFFECT] == -1


def test_heads_that_the_scan_does_not_have_are_missing():
    table = compare_with_published(scan_of_planted_heads(6, model="gpt2"))
    beyond = table["layer"] >= 6
    assert table[beyond][["score", "agrees"]].isna().all(axis=None)
    assert table[~beyond & (table["condition"] == "")]["agrees"].all()


def test_a_model_without_published_heads_is_refused():
    scan = scan_of_planted_heads(1, model="somewhere/SmolLM2-135M")
    with pytest.raises(interp.InputError, match=r"^model must .*gpt2, .*pythia-6\.9b.*, got "):
        compare_with_published(scan)
    assert len(compare_with_published(scan, "gpt2")) == len(published_heads("gpt2"))
    with pytest.raises(interp.InputError, match=r"^model must be given"):
        compare_with_published(scan_of_planted_heads(1))


def real_gpt2() -> str:
    """GPT-2 small: the copy on this machine, else its name on the hub, if that can be reached."""
    for name in ("openai-community/gpt2", "gpt2"):
        copy = try_to_load_from_cache(name, "model.safetensors")
        if isinstance(copy, str):
            return str(Path(copy).parent)
    try:
        socket.create_connection(("huggingface.co", 443), timeout=2).close()
    except OSError:
        pytest.skip("no copy of GPT-2 on this machine, and the Hugging Face hub cannot be reached")
    return "gpt2"


@pytest.mark.hub
def test_a_scan_of_real_gpt2_agrees_with_the_papers():
    table = compare_with_published(interp.scan_heads(real_gpt2()), "gpt2").set_index("name")
    found = table[table["kind"].isin(["induction", "anti-induction"])]["agrees"]
    assert found.dropna().all()
    assert table.loc["L4H11", "agrees"]
    assert table.loc["L5H5", "score"] > 0.8
