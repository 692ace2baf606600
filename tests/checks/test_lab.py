"""Where laws are tried: the cases, the redrawn layers, the inputs, and the watch over random sources."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnzoo
from attnzoo.checks.engine.lab import (
    Case,
    Lab,
    Randomness,
    Switches,
    array,
    find_case,
    option_cases,
    redraw,
    seed_torch,
    size_cases,
    tensor,
)
from attnzoo.checks.exam.faults import SOUND
from attnzoo.errors import ConfigError

CPU = torch.device("cpu")
BUILT_IN = ["gqa", "mha", "mqa", "rope", "single_head"]
each = pytest.mark.parametrize("name", BUILT_IN)


def cases(name: str) -> dict[str, Case]:
    variant = attnzoo.describe(name)
    return {case.name: case for case in (*option_cases(variant), *size_cases(variant))}


def lab(name: str, case: str = "options-0", seed: int = 0) -> Lab:
    return Lab(attnzoo.describe(name), cases(name)[case], CPU, seed)


def sound(kind: str) -> attnzoo.Variant:
    return next(variant for variant in SOUND if variant.name == f"sound_{kind}")


def variant(build: Any, *options: dict[str, Any], **traits: Any) -> attnzoo.Variant:
    return attnzoo.Variant(
        name="ours", build=build, summary="A stand-in.", cases=options, traits=attnzoo.Traits(**traits)
    )


# Cases


@each
def test_no_two_sizes_of_the_default_case_are_equal(name: str) -> None:
    case = lab(name).case
    layer = lab(name).layer()
    sizes = [case.b, case.t, layer.d_model, layer.head_dim]
    sizes += [layer.heads] if layer.heads > 1 else []
    sizes += [layer.kv_heads] if layer.kv_heads not in (1, layer.heads) else []
    assert len(set(sizes)) == len(sizes), sizes
    assert case.b > 1


@pytest.mark.parametrize("name", ["gqa", "rope"])
def test_where_heads_are_grouped_the_default_case_has_several_groups_of_several(name: str) -> None:
    layer = lab(name).layer()
    assert 1 < layer.kv_heads < layer.heads


def test_the_coincidences_of_grouped_attention() -> None:
    found = cases("gqa")
    assert next(iter(found)) == "options-0"
    assert found["kv-heads-1"].options["kv_heads"] == 1 < found["kv-heads-1"].options["heads"]
    assert found["kv-heads-all"].options["kv_heads"] == found["kv-heads-all"].options["heads"] > 1
    assert found["heads-odd"].options["heads"] % 2 == 1
    assert found["scale-0"].options["scale"] == 0
    assert found["scale-0"].flat
    assert not found["options-0"].flat
    assert found["bias"].options["bias"] is True
    assert found["not-causal"].causal is False
    assert found["options-0"].causal is True


def test_the_coincidences_of_windows_and_softcaps() -> None:
    windowed = {case.name: case for case in option_cases(sound("window"))}
    assert windowed["window-1"].options["window"] == 1
    assert windowed["window-1"].solitary
    assert not windowed["options-0"].solitary
    capped = {case.name: case for case in option_cases(sound("capped"))}
    assert capped["softcap-1"].options["softcap"] == 1.0
    assert "window-1" not in capped


def test_the_window_is_that_of_the_case_and_its_rule_can_be_told() -> None:
    where = Lab(sound("window"), option_cases(sound("window"))[0], CPU)
    assert where.window == where.case.options["window"] == 4
    rule = where.visible(9, 9)
    assert rule is not None
    assert rule.sum(-1).tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]
    assert lab("gqa").window is None
    assert lab("gqa", "not-causal").visible(3, 3) is None


def test_documents_differ_from_row_to_row_and_come_again() -> None:
    for seed in range(20):
        ids = lab("gqa", seed=seed).documents(3, 17)
        assert ids.shape == (3, 17)
        borders = [[i for i in range(1, 17) if row[i] != row[i - 1]] for row in ids.tolist()]
        assert borders[0] != borders[1] != borders[2]
        assert all(len(row) >= 3 for row in borders)
        assert any(later - earlier == 1 for row in borders for earlier, later in pairwise(row))
        assert all(row[0] == row[-1] != row[8] or row[0] == row[-1] for row in ids.tolist())
        assert len(set(ids.flatten().tolist())) > 3
        assert min(ids.flatten().tolist()) < 0
    assert lab("gqa").documents(2, 1).shape == (2, 1)
    assert lab("gqa").documents(0, 5).shape == (0, 5)


def test_a_coincidence_changes_nothing_else() -> None:
    found = cases("gqa")
    for name, word in {"scale-0": "scale", "bias": "bias", "not-causal": "causal", "kv-heads-1": "kv_heads"}.items():
        rest = {option: value for option, value in found[name].options.items() if option != word}
        assert rest.items() <= found["options-0"].options.items(), name


def test_what_a_build_takes_for_granted_is_said_in_its_cases() -> None:
    def build(d_model: int, heads: int, causal: bool = False, max_seq_len: int = 32) -> nn.Module:
        return nn.Identity()

    variant = attnzoo.Variant(
        name="short",
        build=build,
        summary="",
        cases=[{"d_model": 24, "heads": 4}, {"d_model": 8, "heads": 2, "max_seq_len": 99}],
    )
    found = {case.name: case for case in [*option_cases(variant), *size_cases(variant)]}
    assert found["options-0"].options == {"d_model": 24, "heads": 4, "causal": False, "max_seq_len": 2048}
    assert found["options-1"].options["max_seq_len"] == 99
    assert found["length-71"].options["max_seq_len"] == 2048
    assert found["causal"].causal
    assert not found["options-0"].causal
    assert "not-causal" not in found


def test_the_sizes_at_which_code_takes_another_path() -> None:
    found = {name: (case.b, case.t) for name, case in cases("gqa").items()}
    assert found["one-token"][1] == 1
    assert found["batch-1"][0] == 1
    assert found["batch-3"][0] == 3
    assert found["batch-heads"][0] == lab("gqa").case.options["heads"]
    assert found["batch-tokens"][0] == found["batch-tokens"][1]
    assert found["batch-9"][0] == 9 > 8
    assert found["length-17"][1] == 17
    assert found["length-71"][1] == 71 > 64


@pytest.mark.parametrize(("taken", "free"), [((2, 3), (5, 7)), ((5, 6), (2, 7)), ((7, 2), (3, 11)), ((11, 7), (2, 13))])
def test_batch_and_length_are_no_size_among_the_options(taken: tuple[int, int], free: tuple[int, int]) -> None:
    def build(d_model: int, width: int) -> nn.Module:
        return nn.Identity()

    (case,) = option_cases(variant(build, dict(zip(("d_model", "width"), taken, strict=True)), causal="never"))
    assert (case.b, case.t) == free


def test_a_variant_without_the_options_has_not_their_coincidences() -> None:
    found = [case.name for case in option_cases(variant(lambda d_model: nn.Identity(), {"d_model": 4}, causal="never"))]
    assert found == ["options-0"]


@pytest.mark.parametrize("refusal", [ConfigError, ValueError, AssertionError])
def test_a_coincidence_that_a_factory_refuses_is_not_among_its_kinds(refusal: type[Exception]) -> None:
    def build(d_model: int, heads: int, *, head_dim: int = 6, causal: bool = True, bias: bool = False) -> nn.Module:
        if heads % 2:
            raise refusal(f"heads={heads}")
        return nn.Identity()

    found = [case.name for case in option_cases(variant(build, {"d_model": 24, "heads": 4}))]
    assert found == ["options-0", "not-causal", "bias"]


def test_a_case_of_the_variants_own_stays_though_its_factory_refuses_it() -> None:
    def build(d_model: int) -> nn.Module:
        raise ConfigError("no")

    assert [case.name for case in option_cases(variant(build, {"d_model": 4}, causal="never"))] == ["options-0"]


def test_a_case_is_found_by_its_name_and_what_differs() -> None:
    every = list(cases("gqa").values())
    found = find_case("options-0,b=1,t=4,kv_heads=6", every)
    assert (found.name, found.b, found.t) == ("options-0", 1, 4)
    assert found.options == {**every[0].options, "kv_heads": 6}
    assert find_case(found.words, every) == found
    assert find_case("bias", every).words == "bias"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("option-0", "no case is called 'option-0'; did you mean 'options-0'"),
        ("options-0,b", "'b' must be word=value, as in options-0,b=1"),
    ],
)
def test_a_case_that_there_is_not(words: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        find_case(words, list(cases("gqa").values()))


# Layers


@pytest.mark.parametrize("case", ["options-0", "bias", "heads-odd", "length-71"])
def test_redrawn_layers_have_logits_of_a_spread_of_about_two(case: str) -> None:
    where = lab("mha", case)
    layer = where.layer()
    q, k, _ = layer.project(where.tokens(b=8, t=40))
    assert 1.5 < float((layer.scale * q @ k.mT).detach().std()) < 3


def test_fresh_layers_have_flat_logits() -> None:
    where = lab("mha")
    layer = where.fresh().double()
    q, k, _ = layer.project(where.tokens(b=8, t=40))
    assert float((layer.scale * q @ k.mT).detach().std()) < 0.7


def test_no_vector_stands_at_its_default() -> None:
    norm = nn.LayerNorm(50)
    redraw(norm, 0)
    for vector, default in ((norm.weight, 1.0), (norm.bias, 0.0)):
        off = vector.detach() - default
        assert bool((off != 0).all())
        assert 0.3 < float(off.std()) < 0.7


def test_matrices_are_drawn_by_their_fan_in() -> None:
    linear = nn.Linear(8, 100)
    redraw(linear, 0)
    assert float(linear.weight.detach().std()) == pytest.approx((2 / 8) ** 0.5, rel=0.1)


def test_a_layer_is_in_eval_in_float64_where_not_asked_otherwise() -> None:
    layer = lab("mha").layer()
    assert not layer.training
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert {p.dtype for p in lab("mha").layer(torch.bfloat16).parameters()} == {torch.bfloat16}
    assert {p.dtype for p in lab("mha").fresh().parameters()} == {torch.float32}
    assert lab("mha").fresh().training


def test_a_changed_option_leaves_the_weights() -> None:
    one, other = lab("gqa").layer(), lab("gqa").layer(scale=0.25)
    assert other.scale == 0.25
    for name, values in one.state_dict().items():
        assert torch.equal(values, other.state_dict()[name])


def test_the_width_is_that_of_the_case_or_the_default() -> None:
    def build(d_model: int = 12) -> nn.Module:
        return nn.Identity()

    (default,) = option_cases(variant(build, {}, causal="never"))
    (given,) = option_cases(variant(build, {"d_model": 8}, causal="never"))
    assert Lab(variant(build, {}, causal="never"), default, CPU).tokens().shape[-1] == 12
    assert Lab(variant(build, {"d_model": 8}, causal="never"), given, CPU).tokens().shape[-1] == 8


# Draws


def drawn(seed: int) -> list[Tensor]:
    where = lab("gqa", seed=seed)
    weights = torch.cat([p.detach().flatten() for p in where.layer().parameters()])
    return [weights, where.tokens(), where.tokens(draw=1), where.normal(3, 5), where.mask(40, 40).double()]


def test_draws_depend_on_the_seed_only() -> None:
    first = drawn(3)
    torch.manual_seed(99)
    torch.rand(7)
    for one, again in zip(first, drawn(3), strict=True):
        assert torch.equal(one, again)
    for one, other in zip(first, drawn(4), strict=True):
        assert not torch.equal(one, other)


def test_draws_of_one_seed_are_different_samples() -> None:
    where = lab("gqa")
    assert not torch.isclose(where.tokens(), where.tokens(draw=1)).any()
    assert not torch.equal(where.mask(9, 9), where.mask(9, 9, draw=1))


def test_tokens_are_the_same_in_every_type() -> None:
    where = lab("gqa")
    assert torch.equal(where.tokens(dtype=torch.float32), where.tokens().float())


def test_a_random_mask_hides_a_third_and_never_a_token_from_itself() -> None:
    mask = lab("gqa").mask(2, 1, 40, 40)
    assert mask.dtype == torch.bool
    assert mask.diagonal(dim1=-2, dim2=-1).all()
    assert 0.6 < float(mask.double().mean()) < 0.75


def test_padding_is_true_on_the_real_tokens() -> None:
    where = lab("gqa")
    assert where.padding([3, 1], 4, left=True).int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 1]]
    assert where.padding([3, 1], 4, left=False).int().tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_numpy_and_back() -> None:
    assert array(None) is None
    assert array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).dtype == np.float64
    assert array(torch.tensor([True])).dtype == np.bool_
    assert array(torch.tensor([3])).dtype == np.int64
    turned = np.arange(6.0).reshape(2, 3).T
    assert torch.equal(tensor(turned), torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], dtype=torch.float64))


# Random sources


@pytest.mark.parametrize(
    ("draw", "source"),
    [(lambda: torch.rand(1), "torch's"), (random.random, "Python's"), (np.random.random, "NumPy's")],
    ids=["torch", "python", "numpy"],
)
def test_a_random_source_that_moved_is_named(draw: Any, source: str) -> None:
    before = Randomness()
    assert before.moved() == []
    draw()
    assert before.moved() == [source]


def test_a_source_that_is_seeded_alike_each_time_has_moved_once_it_is_stirred() -> None:
    np.random.seed(0)
    plain = Randomness()
    np.random.seed(0)
    assert plain.moved() == []
    stirred = Randomness.stirred()
    np.random.seed(0)
    assert stirred.moved() == ["NumPy's"]


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        (lambda: torch.set_grad_enabled(False), "gradients"),
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype"),
        (lambda: torch.set_float32_matmul_precision("medium"), "float32 matmul precision"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms"),
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "the number of threads"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast"),
        (lambda: torch.autograd.set_detect_anomaly(True), "anomaly detection"),
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_a_switch_that_moved_is_named_and_can_be_set_back(turn: Any, name: str) -> None:
    before = Switches()
    assert before.moved() == []
    try:
        turn()
        assert before.moved() == [name]
    finally:
        before.restore()
    assert before.moved() == []


def test_a_generator_of_ones_own_is_no_global_source() -> None:
    before = Randomness()
    torch.rand(3, generator=torch.Generator().manual_seed(1))
    np.random.default_rng(0).random()
    random.Random(0).random()
    assert before.moved() == []


# Seeds


def test_a_seed_is_the_one_that_torch_would_set() -> None:
    torch.manual_seed(11)
    due = torch.rand(3)
    seed_torch(11, CPU)
    assert torch.initial_seed() == 11
    assert torch.equal(torch.rand(3), due)


def test_a_seed_on_the_cpu_leaves_nothing_queued_for_devices_that_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` queues a stack trace a call: a process that ran 60 checks grew to 2.5 GB."""
    for kind in (torch.cuda, torch.xpu, torch.mtia):
        monkeypatch.setattr(kind, "manual_seed_all", lambda seed: pytest.fail("another device was seeded"))
    seed_torch(0, CPU)
    lab("gqa").layer()
