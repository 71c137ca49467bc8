"""Networks of models: layers know their depth, and whole networks have the papers' parameter counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ssmperf import Shape, UnknownName, Unsupported, UsageError
from ssmperf.authoring import Network
from ssmperf.suitekit import count_parameters, registry

LAYERS, VOCABULARY = 4, 11
SIZES = {
    "hgrn": {"C": 8}, "hgrn_complex": {"C": 8}, "hgrn2": {"H": 2, "K": 4, "V": 4}, "pese_lr": {"C": 32},
    "tnl": {"H": 2, "K": 4, "V": 4}, "rwkv4": {"C": 8}, "rwkv5": {"H": 2, "K": 4, "V": 4},
    "rwkv6": {"H": 2, "K": 4, "V": 4}, "mamba2": {"H": 2, "K": 4, "V": 8}, "mamba": {"D": 16, "N": 4},
    "rwkv7": {"H": 2, "K": 4, "V": 4},
    "lcsm:1-0f-1-0": {"D": 8, "N": 4}, "gateloop_fixed": {"C": 8}, "s4": {"C": 8, "N": 4},
}  # fmt: skip
BOUNDED = ("hgrn", "hgrn_complex", "hgrn2", "pese_lr")
WITH_DEPTH = ("tnl", "rwkv4", "rwkv5", "rwkv6")


def network(name: str, **options: Any) -> Network:
    torch.manual_seed(0)
    options = {"layers": LAYERS, "vocabulary": VOCABULARY, **options}
    return Network(name, Shape(B=1, T=1, **SIZES[name]), **options).double()


def tokens(T: int = 9) -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, T), generator=torch.Generator().manual_seed(1))


def mixers(net: Network) -> list[Any]:
    return [block.mixer for block in net.blocks]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_it_computes_logits_and_every_parameter_learns(name: str, tied: bool) -> None:
    net = network(name, tied=tied)
    logits, states = net(tokens())
    assert logits.shape == (2, 9, VOCABULARY) and len(states) == LAYERS
    assert logits.isfinite().all() and 0.1 < logits.std() < 10
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=logits.dtype)
    names, leaves = zip(*net.named_parameters(), strict=True)
    for leaf, gradient in zip(
        names, torch.autograd.grad((direction * logits).sum(), leaves, allow_unused=True), strict=True
    ):
        assert gradient is not None and gradient.isfinite().all() and gradient.any(), leaf


@pytest.mark.parametrize("name", [name for name in SIZES if name != "s4"])
def test_passed_on_states_continue_the_sequence(name: str) -> None:
    net, read = network(name), tokens()
    whole, final = net(read)
    head, states = net(read[:, :4])
    tail, last = net(read[:, 4:], states=states)
    torch.testing.assert_close(torch.cat([head, tail], dim=1), whole, rtol=1e-10, atol=1e-11)
    for got, want in zip(last, final, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


def test_a_tied_head_is_the_embedding_and_counts_once() -> None:
    tied, untied = network("mamba", tied=True), network("mamba", classes=3)
    assert tied.head.weight is tied.embedding.weight
    width = untied.embedding.embedding_dim
    counts = [sum(parameter.numel() for parameter in net.parameters()) for net in (tied, untied)]
    assert counts[1] - counts[0] == 3 * width
    assert untied(tokens())[0].shape == (2, 9, 3)


@pytest.mark.slow(but=("s4", "rwkv7", "pese_lr"))
@pytest.mark.parametrize("name", SIZES)
def test_a_count_is_that_of_the_parameters(name: str) -> None:
    shape = Shape(B=1, T=1, **SIZES[name])
    for options in ({}, {"tied": True}, {"final_norm": False}):
        real = sum(parameter.numel() for parameter in network(name, **options).parameters())
        assert count_parameters(name, shape, layers=LAYERS, vocabulary=VOCABULARY, **options) == real


def test_options_reach_every_model_and_every_block() -> None:
    net = network("mamba", options={"rank": 3})
    assert {mixer.step_down.out_features for mixer in mixers(net)} == {3}
    net = network("tnl", options={"depth": 0.5}, block_options={"hidden": 7})
    assert {mixer.depth for mixer in mixers(net)} == {0.5}
    assert {block.channels.up.out_features for block in net.blocks} == {7}


def test_what_makes_no_network_is_refused() -> None:
    shape = SIZES["mamba"]
    with pytest.raises(UsageError, match="at least one layer"):
        Network("mamba", shape, layers=0, vocabulary=5)
    with pytest.raises(UsageError, match="tied"):
        Network("mamba", shape, layers=1, vocabulary=5, classes=4, tied=True)
    with pytest.raises(UnknownName):
        Network("no_such_model", shape, layers=1, vocabulary=5)


@pytest.mark.parametrize("name", BOUNDED)
def test_the_lower_bounds_of_all_layers_come_from_one_parameter(name: str) -> None:
    net = network(name)
    bounds = mixers(net)[0].lower_bound.bounds
    assert all(mixer.lower_bound.bounds is bounds for mixer in mixers(net))
    with torch.no_grad():
        bounds.gamma.copy_(torch.randn(bounds.gamma.shape, generator=torch.Generator().manual_seed(3)))
    share = torch.softmax(bounds.gamma, dim=0)
    width = net.embedding.embedding_dim
    x = torch.randn(2, 5, width, dtype=torch.float64)
    for layer, mixer in enumerate(mixers(net)):
        want = share[1 : layer + 1].sum(0)
        torch.testing.assert_close(mixer.bound(), want)
        torch.testing.assert_close(mixer(x)[0], mixer.definition(x), rtol=1e-10, atol=1e-12)
        f = torch.exp(mixer.operands(x)["log_a"]).reshape(2, 5, -1, width)
        assert (f >= want - 1e-12).all()
    first, last = mixers(net)[0].bound(), mixers(net)[-1].bound()
    assert (first == 0).all() and (last > 0).all() and (last < 1).all()


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_start_as_multiples_of_one_over_the_layers_and_are_trained(name: str) -> None:
    net = network(name)
    for layer, mixer in enumerate(mixers(net)):
        torch.testing.assert_close(mixer.bound(), torch.full_like(mixer.bound(), layer / LAYERS))
    gamma = mixers(net)[0].lower_bound.bounds.gamma
    assert sum(parameter is gamma for parameter in net.parameters()) == 1
    before = mixers(net)[-1].bound().detach().clone()
    net(tokens())[0].square().sum().backward()
    with torch.no_grad():
        gamma -= 0.5 * gamma.grad
    assert (mixers(net)[-1].bound() - before).abs().max() > 1e-6


def test_decays_of_tnl_shrink_with_depth() -> None:
    net = network("tnl")
    x = torch.zeros(1, 1, net.embedding.embedding_dim, dtype=torch.float64)
    log_a = torch.stack([mixer.operands(x)["log_a"] for mixer in mixers(net)])
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)
    want = torch.stack([-slopes * (1 - layer / LAYERS) for layer in range(LAYERS)])
    torch.testing.assert_close(log_a, want)


@pytest.mark.parametrize("name", ["rwkv4", "rwkv5", "rwkv6"])
def test_decays_of_rwkv_start_by_depth_from_the_first_layer_to_the_last(name: str) -> None:
    net, cls = network(name), registry.model(name).cls
    for layer, mixer in enumerate(mixers(net)):
        alone = cls(SIZES[name], depth=layer / (LAYERS - 1))
        torch.testing.assert_close(mixer.omega, alone.omega.double())
    assert (mixers(net)[0].omega != mixers(net)[-1].omega).any()


def test_later_layers_of_rwkv7_mix_in_the_values_of_the_first() -> None:
    net, read = network("rwkv7"), tokens()
    before = net(read)[0]
    first, later = mixers(net)[0], mixers(net)[2]
    assert not hasattr(first, "share") and later.layer == 2
    with torch.no_grad():
        later.share_bias.fill_(-800.0)  # no share of the first layer's values
        alone = net(read)[0]
        later.share_bias.fill_(800.0)  # nothing else
        replaced = net(read)[0]
        later.value.weight.zero_()
        ignored = net(read)[0]
    assert not torch.allclose(before, alone) and not torch.allclose(alone, replaced)
    torch.testing.assert_close(ignored, replaced)
    with pytest.raises(Unsupported, match="first layer"):
        later(torch.zeros(1, 3, later.width, dtype=torch.float64))


@pytest.mark.parametrize("name", [*BOUNDED, *WITH_DEPTH])
def test_the_first_layer_is_the_default_of_a_model_and_the_last_is_not(name: str) -> None:
    net, cls = network(name), registry.model(name).cls
    x = torch.randn(2, 7, net.embedding.embedding_dim, dtype=torch.float64)
    for layer, same in ((0, True), (LAYERS - 1, False)):
        placed = mixers(net)[layer]
        alone = cls(SIZES[name]).double()
        weights = {key: value for key, value in placed.state_dict().items() if "lower_bound" not in key}
        start = alone.omega.detach().clone() if hasattr(alone, "omega") else None
        alone.load_state_dict(weights)
        if start is not None:
            alone.omega = nn.Parameter(start)  # depth enters the start of ω
        if name in ("rwkv5", "rwkv6"):
            alone.bonus = nn.Parameter(cls(SIZES[name]).double().bonus.detach())
        assert torch.allclose(alone(x)[0], placed(x)[0], rtol=1e-10, atol=1e-12) == same


# --- parameter counts of whole networks, in millions -------------------------------------------------------


def test_parameter_counts_of_the_published_mamba_checkpoints_of_130_million() -> None:
    """24 blocks of width 768 with GPT-NeoX's tokens, padded to multiples of 8 and of 16."""
    mamba = count_parameters("mamba", Shape(B=1, T=1, D=1536, N=16), layers=24, vocabulary=50280, tied=True)
    assert mamba == 129_135_360
    sizes = Shape(B=1, T=1, H=24, K=128, V=64)
    assert count_parameters("mamba2", sizes, layers=24, vocabulary=50288, tied=True) == 128_989_632


def test_parameter_count_of_the_smallest_published_rwkv7() -> None:
    """12 layers of width 768 and 65,536 tokens, by the tensors of the published training code: 0.19 billion.

    It has a layer norm of the embedding, which the network here leaves out.
    """
    D, layers, vocabulary = 768, 12, 65536
    layer = 12 * D * D + 2 * D * (64 + 64 + 32 + 128) + 19 * D  # products, low ranks, vectors
    first_has_no_share = 2 * 32 * D + D
    want = 2 * D * vocabulary + layers * layer - first_has_no_share + 2 * D
    count = count_parameters("rwkv7", Shape(B=1, T=1, H=12, K=64, V=64), layers=layers, vocabulary=vocabulary)
    assert count == want
    assert round((count + 2 * D) / 1e9, 2) == 0.19


def test_parameter_count_of_hgrn2_on_wikitext() -> None:
    """6 layers of width 512 with heads of 128, biases, layer norms, a GLU of 1,365 and one Γ: Table 5."""
    sizes = Shape(B=1, T=1, H=4, K=128, V=128)
    count = count_parameters("hgrn2", sizes, layers=6, vocabulary=50265, tied=True)
    assert round(count / 1e6, 2) == 44.66
    assert count == count_parameters(
        "hgrn2",
        Shape(B=1, T=1, H=1, K=8, V=512),
        layers=6,
        vocabulary=50265,
        tied=True,
        options={"expand": 128},
    )


@pytest.mark.parametrize("name", ["hgrn", "hgrn2", "pese_kp"])
def test_a_network_of_bounds_has_one_row_of_them_per_layer(name: str) -> None:
    sizes = {"hgrn": {"C": 8}, "hgrn2": SIZES["hgrn2"], "pese_kp": {"C": 32}}[name]
    one, two = (count_parameters(name, sizes, layers=layers, vocabulary=5) for layers in (2, 3))
    cls = registry.model(name).cls
    block = cls.block(cls(sizes))
    assert two - one == sum(parameter.numel() for parameter in block.parameters()) + block.width
