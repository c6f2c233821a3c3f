import pytest
import torch
from families import own_patterns
from tiny_models import AROUND, CONFIGS, FURTHER, LATER, tiny

import interp
from interp.kinds.probes import repeated

IDS = torch.tensor([[5, 6, 7, 8, 5, 9, 30, 41, 5, 6, 17]])
QUICK = [*CONFIGS, "llama4", "deepseek2", "granite", "bert"]
REFUSED = ("gemma3n", "t5", "bart")
OTHERS = sorted({*FURTHER, *LATER, *AROUND} - {*QUICK, *REFUSED})


def loaded(family: str) -> interp.Model:
    """A small random model in which norms and biases are not what they are initialized to."""
    model = tiny(family)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1 and ("norm" in name or "ln_" in name or "bias" in name):
                weight += torch.rand_like(weight) / 4
            elif "q_proj" in name or "query" in name:
                weight /= 8  # So that no probability is 0.
    return interp.load_model(model)


@pytest.mark.parametrize(
    "family", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_the_terms_sum_to_the_log_odds_of_the_models_own_pattern(family):
    model = loaded(family)
    layer, query, head = model.attending[-1], 6, 2
    row = own_patterns(model.plain, IDS)[-1][0, head, query].double()
    why = interp.why(model, IDS, (layer, head), query)
    visible = row > 0
    visible[why.key] = False
    expected = row[why.key].log() - row[visible].log().mean()
    assert why.key == row.argmax()
    assert why.made_by["attention"] == pytest.approx(float(row.max()), abs=1e-4)
    assert why.log_odds == pytest.approx(float(expected), abs=1e-4)
    table = why.to_frame()
    assert table["share"].sum() == pytest.approx(1)
    assert table.loc[table["in_smallest"], "share"].sum() >= 0.8
    assert table.loc[table["in_smallest"], "share"].iloc[:-1].sum() < 0.8
    assert ("position" in why.terms) == (family in ("bloom", "mpt"))
    checks = why.checks
    assert (checks["predicted"] - checks["frozen"]).abs().max() < 1e-3
    assert {*checks["side"]} == {"query", "key"}


def test_the_score_is_the_models_own():
    model = loaded("llama")
    whys = [interp.why(model, IDS, "L1H3", -1, key) for key in (0, 4)]
    pattern = own_patterns(model.plain, IDS)[1][0, 3, -1].double().log()
    first, second = (why.scores.to_numpy().sum() for why in whys)
    assert first - second == pytest.approx(float(pattern[0] - pattern[4]), abs=1e-4)
    assert [*whys[0].terms.columns[3:7]] == ["L0H0", "L0H1", "L0H2", "L0H3"]


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_the_keys_of_a_built_circuit_are_the_previous_token_head(positions):
    model = interp.build_circuit(positions, vocabulary=64, length=33)
    heads = {"absolute": ("L0H3", "L1H5"), "rotary": ("L0H1", "L1H2")}[positions]
    ids = torch.tensor([[0, 11, 12, 13, 14, 15, 11, 12]])
    why = interp.why(model, ids, heads[1], query=-1)
    assert (why.key, why.smallest("key")) == (3, [heads[0]])
    assert why.by_part("key")[heads[0]] >= 0.99
    after = why.checks.set_index(["side", "part"]).loc[("key", heads[0])]
    assert after["recomputed"] == pytest.approx(after["predicted"], rel=0.05)


def test_a_result_is_saved_and_says_what_it_found(tmp_path):
    why = interp.why(loaded("gpt2"), IDS, "L1H2", query=6)
    why.save(tmp_path / "why.json")
    again = interp.Why.load(tmp_path / "why.json")
    assert repr(again) == repr(why)
    assert "terms carry 80%" in repr(why)
    assert again.terms.equals(why.terms)
    assert again.checks.equals(why.checks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": 11}, "query must be from -11 to 10, got 11"),
        ({"query": 3, "key": 4}, "key must be one of at least two that query 3 sees, got 4"),
        ({"query": 0}, "key must be one of at least two that query 0 sees"),
    ],
)
def test_wrong_positions_are_refused(options, message):
    with pytest.raises(interp.InputError, match=message):
        interp.why(loaded("llama"), IDS, "L1H0", **options)


def test_models_without_one_sum_are_refused():
    with pytest.raises(interp.InputError, match="an encoder-decoder"):
        interp.why(tiny("t5"), IDS, "L1H0", 3)
    with pytest.raises(interp.InputError, match="several streams"):
        interp.why(tiny("gemma3n"), IDS, "L1H0", 3)


@pytest.mark.slow
def test_without_a_few_parts_induction_heads_lose_what_the_terms_predict(real_model):
    """Where the induction heads of the default model do their work: repeats of random tokens."""
    tokens = repeated(real_model.vocabulary, rows=2, length=60, bos=real_model.bos, seed=3).tokens
    changes = []
    for row in tokens:
        for head in ("L18H6", "L17H3", "L17H4"):
            for query in (-1, -4):
                key = int((row[:query] == row[query]).nonzero().max()) + 1
                checks = interp.why(real_model, row, head, query, key).checks
                changes += checks.loc[checks["part"] == "all of these"].to_dict("records")
    predicted, actual = (
        torch.tensor([each[name] for each in changes]) for name in ("predicted", "recomputed")
    )
    rest = (actual - predicted).square().sum() / (actual - actual.mean()).square().sum()
    assert 1 - rest >= 0.9
