"""The comparison of circuits: built ones measure as they were built, and files keep it."""

import json

import pytest
from tiny_models import tiny

import interp
from interp.circuits.compare import MEASURES, SHOWN, Comparison, compare_circuits
from interp.errors import InputError
from interp.heads import Head


@pytest.fixture(scope="module")
def by_hand():
    models = {
        positions: interp.build_circuit(positions, 64, 65) for positions in ("absolute", "rotary")
    }
    return compare_circuits(models, rows=4)


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_a_circuit_built_by_hand_measures_as_it_was_built(by_hand, positions):
    circuit = by_hand.circuits[positions]
    measures = circuit.measures
    assert set(measures) == set(MEASURES)
    assert not circuit.left_out
    least = 0.999 if positions == "absolute" else 0.99
    for name in ("previous_token", "induction", "rest", "induction_least"):
        assert least <= measures[name] <= 1 + 1e-4
    assert measures["accuracy_second_copy"] == measures["qk_match"] == measures["ov_copy"] == 1
    assert measures["loss_second_copy"] < 0.01
    assert measures["loss_first_copy"] == pytest.approx(measures["loss_chance"], abs=0.1)


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_its_heads_are_joined_by_the_keys_and_by_nothing_else(by_hand, positions):
    measures = by_hand.circuits[positions].measures
    assert measures["K_z"] >= 10
    assert abs(measures["Q_z"]) <= 2
    assert abs(measures["V_z"]) <= 2
    assert measures["K_rank"] == 1
    assert measures["induction_without_in_K"] < 0.01
    assert measures["effect_without_in_K"] < 0.01 * measures["effect"]
    assert measures["induction_without_in_Q"] > 0.99
    assert measures["effect_without_in_Q"] > 0.9 * measures["effect"]
    assert measures["effect_without_in_V"] > 0.9 * measures["effect"]
    assert measures["induction_without"] < 0.01
    assert measures["loss_without"] == pytest.approx(measures["loss_chance"], abs=0.1)


def test_the_pair_is_drawn_on_the_same_row_for_each(by_hand):
    for circuit in by_hand.circuits.values():
        assert {role: pattern.shape for role, pattern in circuit.patterns.items()} == {
            "previous_token": (SHOWN, SHOWN),
            "induction": (SHOWN, SHOWN),
        }
        period = (SHOWN - 1) // 2
        assert circuit.patterns["previous_token"][1:].diagonal().min() > 0.99
        stripe = circuit.patterns["induction"].diagonal(1 - period)[2:]
        assert stripe.min() > 0.99


def test_the_result_survives_its_file_and_is_a_table(by_hand, tmp_path):
    by_hand.save(tmp_path / "comparison.json")
    content = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert list(content["circuits"]) == ["absolute", "rotary"]
    assert len(content["circuits"]["absolute"]["edges"]) == 3 * 8 * 1
    assert len(content["edges"]) == 3 * 4 * 1
    assert "edges" not in content["circuits"]["rotary"]
    again = Comparison.load(tmp_path / "comparison.json")
    assert again.to_json() == by_hand.to_json()
    frame = by_hand.to_frame()
    assert list(frame.index) == list(MEASURES)
    for name, circuit in by_hand.circuits.items():
        assert frame[name].to_dict() == circuit.measures
        assert again.circuits[name].heads == circuit.heads
    assert "L1H5 and L0H3, induction 1.00" in repr(by_hand)


def test_without_an_induction_head_the_rest_is_measured_and_the_reason_given():
    model = interp.build_circuit("absolute", 64, 65, match=False)
    circuit = compare_circuits({"broken": model}, rows=2).circuits["broken"]
    assert set(circuit.measures) == {
        "loss_chance",
        "loss_first_copy",
        "loss_second_copy",
        "accuracy_second_copy",
    }
    assert set(circuit.measures) | set(circuit.left_out) == set(MEASURES)
    reasons = set(circuit.left_out.values())
    assert reasons == {"no head is labelled induction, the highest score is 0.00"}
    assert circuit.found["previous token"] == pytest.approx({"L0H3": 1.0}, abs=1e-3)


def test_what_a_circuit_lost_shows_where_it_was_lost():
    model = interp.build_circuit("absolute", 64, 65, blur=0.3, wrong_copy=0.25)
    measures = compare_circuits({"worse": model}, rows=4).circuits["worse"].measures
    assert measures["previous_token"] == pytest.approx(0.7, abs=0.02)
    assert measures["ov_copy"] == pytest.approx(0.75, abs=0.02)
    assert measures["qk_match"] == 1
    assert 0.6 < measures["accuracy_second_copy"] < 0.9


def test_one_layer_alone_has_no_pair():
    model = tiny("llama", num_hidden_layers=1)
    circuit = compare_circuits({"one": model}, rows=2).circuits["one"]
    assert Head(0, 0) not in circuit.heads.values()
    assert set(circuit.measures) | set(circuit.left_out) == set(MEASURES)


def test_what_cannot_be_compared_is_refused():
    for name, call in {
        "models": lambda: compare_circuits({}),
        "rows": lambda: compare_circuits({"one": tiny("llama")}, rows=1),
    }.items():
        with pytest.raises(InputError, match=f"^{name} must"):
            call()


@pytest.mark.slow
@pytest.mark.real_model
def test_the_real_model_names_the_head_that_feeds_its_induction_heads(real_model):
    circuit = compare_circuits({"real": real_model}, rows=2).circuits["real"]
    assert circuit.heads == {"previous_token": Head(16, 0), "induction": Head(18, 6)}
    assert not circuit.left_out
    keys = [edge for edge in circuit.edges if edge.path == "K"]
    for target in (Head(17, 3), Head(17, 4), Head(18, 6)):
        own = [edge for edge in keys if edge.to == target]
        assert min(own, key=lambda edge: edge.change("stripe")).source == Head(16, 0)
    # Without it an induction head loses a tenth of what it loses without L16H0.
    assert all(edge.change("stripe") > -0.1 for edge in keys if edge.source == Head(11, 1))
