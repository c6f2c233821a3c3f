import json

import pandas as pd
import pytest
import transformers
from encoders import encoder
from scored import scored
from tiny_models import CONFIGS, tiny, words_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from typed import unchecked

import interp
from interp.kinds.builtin import LABELS
from interp.kinds.scores import Thresholds
from interp.scan.report import report

COLUMNS = ["layer", "head", "name", "label", "labels", *LABELS]


@pytest.fixture(scope="module")
def model():
    return interp.load_model(tiny("llama"), words_tokenizer())


@pytest.fixture(scope="module", autouse=True)
def passages():
    """Text in words that the tiny tokenizer knows."""
    text = " ".join(f"w{3 + i * i % 190}" for i in range(400))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("interp.kinds.probes.passages", lambda: {"words": text})
        yield


@pytest.fixture(scope="module")
def scan(model, passages):
    return interp.scan_heads(model, rows=4)


FAMILIES = [
    pytest.param(name, marks=[] if name in ("gpt2", "gemma2", "bloom") else pytest.mark.slow)
    for name in CONFIGS
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_of_every_family_gets_a_row(family):
    frame = interp.scan_heads(tiny(family), rows=2).to_frame()
    assert list(frame["name"]) == [f"L{layer}H{head}" for layer in (0, 1) for head in range(4)]
    assert set(COLUMNS) <= set(frame.columns)


@pytest.mark.fault("C37")
@pytest.mark.parametrize("lacking", ["all unknown", "nothing left", "no unknown token"])
def test_a_tokenizer_without_the_letters_of_the_texts_runs_no_text_and_says_so(
    lacking, monkeypatch
):
    listed = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(4, 200))]
    words = {word: i for i, word in enumerate(listed)}
    unknown = {"unk_token": "[UNK]"} if lacking == "all unknown" else {}
    model = WordLevel(words, **unknown) if lacking != "nothing left" else BPE(words, [])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), **unknown)
    monkeypatch.setattr("interp.kinds.probes.passages", lambda: {"prose": "Хай живе кіт"})
    scan = interp.scan_heads(interp.load_model(encoder(), tokenizer), rows=2)
    assert "the tokenizer lacks the letters" in scan.made_by["left_out"]["text_<kind>"]
    assert not [column for column in scan.frame if column.startswith("text_")]
    assert scan.frame["entropy"].notna().all()
    told = " ".join(line for line in report(scan, top=1) if isinstance(line, str))
    assert "left out: text_<kind>: natural text was not run" in told


def test_scores_are_shares_of_attention_and_never_nan(scan):
    frame = scan.to_frame()
    scores = frame[[c for c in frame if c.removeprefix("text_").removesuffix("_chance") in LABELS]]
    measured = scores.stack()
    assert measured.between(0, 1 + 1e-6).all()  # float32 sums
    assert (
        not frame.select_dtypes("Float64")
        .apply(lambda c: c.to_numpy(float, na_value=0))
        .isna()
        .any(axis=None)
    )


def test_a_scan_scores_what_classify_heads_scores_on_the_same_attention(model, scan):
    from interp.kinds import probes as tokens

    probe = tokens.repeated(model.vocabulary, rows=4, length=64, bos=model.bos, seed=0)
    patterns = interp.attention_patterns(model, probe.tokens)
    for layer, pattern in enumerate(patterns):
        scores = scored(
            pattern,
            probe.tokens,
            counted=probe.parts["repeated"],
            special=model.special,
            thresholds=Thresholds(),
        )
        rows = scan.frame[scan.frame["layer"] == layer]
        # The same float32 numbers, rows summed in another order.
        assert rows["induction"].tolist() == pytest.approx(
            scores.tallies["induction"].mean.tolist(), abs=1e-6
        )


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(model, scan):
    pd.testing.assert_frame_equal(interp.scan_heads(model, rows=4).frame, scan.frame)
    other = interp.scan_heads(model, rows=4, seed=1)
    assert other.frame["induction"].tolist() != scan.frame["induction"].tolist()


def test_rows_run_in_batches_give_what_they_give_at_once(model, scan, monkeypatch):
    monkeypatch.setattr("interp.scan.measure._SIZE", 4 * 4 * 64**2)  # One row at a time.
    apart = interp.scan_heads(model, rows=4)
    # The same rows, their tensors of another shape.
    pd.testing.assert_frame_equal(apart.frame, scan.frame, check_exact=False, atol=1e-5, rtol=0)


def test_the_result_says_how_it_was_made(scan):
    made_by = scan.made_by
    assert made_by["seed"] == 0
    assert made_by["bos"] == 1
    assert [probe["parts"] for probe in made_by["probes"]] == [
        ["random", "repeated"],
        ["text"],
        ["shuffled", "elsewhere"],
    ]
    assert len(set(made_by["probes"][0]["periods"])) > 1
    assert made_by["bos_text"] == "<s>"
    rows = made_by["probes"][0]["tokens"]
    assert len(rows) == 4
    assert all(row.startswith("1 ") and len(row.split()) == 64 for row in rows)
    assert made_by["thresholds"]["induction"] == 0.4
    assert set(made_by["versions"]) == {"interp", "torch", "transformers", "transformer-lens"}
    json.dumps(made_by)


def test_a_model_without_a_tokenizer_is_scanned_on_random_tokens_alone():
    scan = interp.scan_heads(tiny("gpt2"), rows=2)
    parts = [probe["parts"] for probe in scan.made_by["probes"]]
    assert parts == [["random", "repeated"], ["shuffled", "elsewhere"]]
    assert not [column for column in scan.frame if column.startswith("text_")]


@pytest.mark.fault("B53")
def test_repeats_beyond_a_layers_window_are_not_measured_instead_of_zero():
    frame = interp.scan_heads(tiny("gemma2"), rows=2).to_frame()
    windowed, open_ = frame[frame["layer"] == 0], frame[frame["layer"] == 1]
    assert windowed["induction"].isna().all()
    assert windowed["not_measured"].str.contains("beyond the layer's window of 4 tokens").all()
    assert windowed["labels"].map(lambda labels: "local window (by architecture)" in labels).all()
    assert open_["induction"].notna().all()
    assert (open_["not_measured"] == "").all()


def test_scores_as_others_define_them_stand_beside_ours(model):
    scan = interp.scan_heads(model, rows=2, quick=True, definitions=["stripe", "mul_induction"])
    # The stripe also counts queries whose copy is next door, which ours leaves out: none here.
    assert scan.frame["as_stripe"].tolist() == pytest.approx(
        scan.frame["induction"].tolist(), abs=1e-5
    )
    assert (scan.frame["as_mul_induction"] < scan.frame["as_stripe"]).all()


def test_a_quick_scan_has_no_null_and_says_what_it_leaves_out(model):
    scan = interp.scan_heads(model, rows=2, quick=True)
    assert not [c for c in scan.frame if "null" in c or "effect" in c or "copying" in c]
    assert scan.made_by["quick"]
    assert set(scan.made_by["left_out"].values()) == {"a quick scan was asked for"}
    assert "induction_low" in scan.frame


def test_a_full_scan_has_evidence_beside_every_score(scan):
    frame = scan.frame
    for kind in LABELS:
        inside = frame[f"{kind}_low"] <= frame[kind] + 1e-9
        assert (inside & (frame[kind] <= frame[f"{kind}_high"] + 1e-9)).all()
        assert (frame[f"{kind}_null"] <= frame[f"{kind}_null_99"] + 1e-9).all()
        assert (frame[f"{kind}_spread"] >= 0).all()
    assert (
        frame["induction_logit_effect"]
        .between(
            frame["induction_logit_effect_low"] - 1e-6, frame["induction_logit_effect_high"] + 1e-6
        )
        .all()
    )
    assert frame["text_sink_value_weighted"].between(0, 1 + 1e-5).all()
    assert frame["ov_copying"].between(-1, 1).all()
    assert frame["margin"].notna().all()


@pytest.mark.parametrize(("number", "opening"), [(0, []), (1, [1]), (2, [1, 1])])
def test_a_row_opens_with_as_many_bos_as_asked_for(model, number, opening):
    scan = interp.scan_heads(model, rows=2, quick=True, bos=number)
    assert scan.made_by["n_bos"] == number
    for probe in scan.made_by["probes"]:
        for row in probe["tokens"]:
            ids = [int(i) for i in row.split()]
            assert ids[:number] == opening
            assert ids[number] != 1


def test_two_bos_need_one_token_more():
    short = interp.load_model(tiny("gpt2", n_positions=12))
    assert interp.scan_heads(short, rows=1, quick=True).made_by["probes"][0]["length"] == 12
    with pytest.raises(
        interp.InputError, match="length must be at least 13 tokens with two BOS, got 12"
    ):
        interp.scan_heads(short, rows=1, bos=2)
    longer = interp.load_model(tiny("gpt2", n_positions=13))
    assert interp.scan_heads(longer, rows=1, quick=True, bos=2).made_by["n_bos"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": [1]},
        {"definitions": ["stripe", "strip"]},
        {"definitions": "stripe"},
        {"rows": 0},
        {"seed": 1.5},
        {"bos": 3},
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_before_a_model_is_loaded(options):
    with unchecked(), pytest.raises(interp.InputError, match=rf"^{next(iter(options))} must"):
        interp.scan_heads("./none", **options)


def test_a_context_too_short_for_a_probe_is_refused():
    short = tiny("gpt2", n_positions=8)
    with pytest.raises(interp.InputError, match="length must be at least 12 tokens, got 8"):
        interp.scan_heads(short)
