"""Every model's block: a layer that streams exactly, learns with all its parameters, and is causal."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from ssmperf import Shape, Unsupported, UsageError
from ssmperf.authoring import Block, Model, build_block
from ssmperf.suitekit import registry

VARIANTS = ("retnet_xpos:glu=true:width=10", "rwkv5:per_head=true")  # with another layer
MODELS = [*sorted(registry.models()), *VARIANTS]
SIZES = {"B": 2, "T": 17, "C": 16, "H": 2, "K": 4, "V": 6, "D": 8, "N": 4}
SPLITS = (1, 2, 11)  # pieces shorter than a convolution, too
LAYERS = {  # of the papers; all others have the plain residual layer
    "MambaBlock": {"mamba", "mamba_zoh", "longhorn", "longhorn_exact"},
    "Mamba2Block": {"mamba2"},
    "GriffinBlock": {"rg_lru"},
    "RetNetBlock": {"retnet", "retnet_xpos"},
    "GatedBlock": {"gla"},
    "TNLBlock": {"tnl"},
    "DeltaNetBlock": {"deltanet"},
    "GatedDeltaNetBlock": {"gated_deltanet"},
    "KDABlock": {"kda"},
    "DeltaProductBlock": {"deltaproduct"},
    "RWKV4Block": {"rwkv4", "rwkv4_nobonus"},
    "RWKV5Block": {"rwkv5"},
    "RWKV6Block": {"rwkv6"},
    "RWKV7Block": {"rwkv7"},
    "GateLoopBlock": {"gateloop", "gateloop_fixed", "gateloop_full"},
    "HGRNBlock": {"hgrn", "hgrn_complex", "hgrn2"},
    "XLSTMBlock": {"mlstm", "mlstm_sigmoid"},
    "Mamba3Block": {"mamba3"},
    "SlotBlock": {"gsa"},
    "NormedBlock": {"lrn", "lrpe"},
    "TransformerBlock": {"attention", "forgetting_attention", "based"},
    "S4Block": {"s4", "s4d_lin", "s4d_inv", "lru"},
    "DSSBlock": {"dss_exp", "dss_softmax"},
    "S5Block": {"s5", "s5_shared_siso"},
    "MinRNNBlock": {"mingru", "mingru_pos", "minlstm", "minlstm_pos"},
    "PostNormBlock": {"linear_transformer"},
    "PreNormBlock": {"cosformer"},
    "TNNBlock": {"tnn"},
    "RetNetGLUBlock": {"retnet_xpos:glu=true:width=10"},
    "HeadwiseRWKV5Block": {"rwkv5:per_head=true"},
}

each_model = pytest.mark.parametrize("name", MODELS)


def shape_of(name: str) -> Shape:
    sizes = SIZES | ({"H": 1} if name.startswith("lcsm") else {})
    return Shape({letter: sizes[letter] for letter in registry.shapes(registry.model(name), "smoke")[0]})


def build(name: str, *, dtype: torch.dtype = torch.float64) -> Block:
    torch.manual_seed(0)
    return build_block(name, shape_of(name)).to(dtype)


def sequence(block: Block, *, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    size = (SIZES["B"], SIZES["T"], block.width)
    return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)


def parallel(name: str) -> str | None:
    """A backend that is not the loop and takes this model, or None."""
    gate = registry.model(name).gate
    for known in ("chunkwise", "blelloch", "torch_scan", "state_first", "fft"):
        if known in registry.backend_names(name):
            backend = registry.backend(name, known)
            if backend.refusal(device="cpu", dtype="float64", gate_kind=gate, length=1) is None:
                return known
    return None


def in_pieces(block: Block, x: torch.Tensor, backend: str) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    state, outputs = None, []
    for piece in x.tensor_split(SPLITS, dim=1):
        y, state = block(piece, backend=backend, state=state)
        outputs.append(y)
    assert state is not None
    return torch.cat(outputs, dim=1), state


@each_model
def test_a_passed_on_state_continues_the_sequence(name: str) -> None:
    block = build(name)
    x = sequence(block)
    for backend in filter(None, ("sequential", parallel(name))):
        whole, final = block(x, backend=backend)
        assert whole.shape == x.shape and whole.dtype == x.dtype
        if final is None or block.mixer.depends_on_length:
            continue
        got, state = in_pieces(block, x, backend)
        for a, b in zip((got, *state), (whole, *final), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@each_model
def test_a_state_is_carried_exactly_where_the_recurrence_has_one(name: str) -> None:
    block = build(name)
    x = sequence(block)
    _, final = block(x)
    recurrence = registry.recurrence(registry.recurrence_of(name))
    assert (final is not None) == recurrence.has_state
    for wrong in ((torch.zeros(1),) * 7, torch.zeros(1)):
        with pytest.raises(Unsupported, match="state"):
            block(x, state=wrong)


@each_model
def test_every_parameter_and_x_get_a_gradient(name: str) -> None:
    block = build(name)
    x = sequence(block).requires_grad_()
    leaves = {"x": x, **dict(block.named_parameters())}
    y, _ = block(x)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(2), dtype=y.dtype)
    for leaf, gradient in zip(
        leaves, torch.autograd.grad((direction * y).sum(), leaves.values()), strict=True
    ):
        assert gradient.isfinite().all() and gradient.any(), leaf


@each_model
def test_it_looks_at_no_later_token_and_at_no_other_sequence(name: str) -> None:
    block = build(name)
    if block.mixer.depends_on_length:
        pytest.skip(f"{name} is another function of a part than of the whole")
    x = sequence(block)
    y, _ = block(x)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=x.dtype)
    later, other = x.clone(), x.clone()
    later[:, 9:] += noise[:, 9:]
    other[1] += noise[1]
    torch.testing.assert_close(block(later)[0][:, :9], y[:, :9], rtol=0, atol=1e-11)
    torch.testing.assert_close(block(other)[0][0], y[0], rtol=0, atol=1e-11)


@each_model
def test_it_is_not_linear_but_for_its_norms(name: str) -> None:
    """A block that is an affine map without its norms makes a network one, however deep it is."""
    block = build(name)
    for parent in list(block.modules()):
        for child, module in parent.named_children():
            if "Norm" in type(module).__name__:
                setattr(parent, child, nn.Identity())
    x = sequence(block)
    y = x.flip(1)
    of_sum, of_x, of_y, of_zero = (block(z)[0] for z in (x + y, x, y, torch.zeros_like(x)))
    beyond = of_sum - of_x - of_y + of_zero
    assert beyond.abs().max() > 1e-6 * of_sum.abs().max()


@each_model
def test_its_type_is_that_of_the_paper(name: str) -> None:
    families = {"lcsm": "LCSMBlock", "pese": "HGRNBlock"}
    found = {layer for layer, names in LAYERS.items() if name in names}
    expected = next(iter(found), families.get(name[:4], "Block"))
    assert type(build(name)).__name__ == expected


@pytest.mark.parametrize("name", [name for name in MODELS if "bfloat16" in registry.model(name).dtypes])
def test_half_precision_stays_near_float64(name: str) -> None:
    block = build(name, dtype=torch.bfloat16)
    x = sequence(block, dtype=torch.bfloat16)
    y, _ = block(x)
    assert y.dtype == torch.bfloat16
    with torch.no_grad():
        want, _ = block.double()(x.double())
    assert (y.double() - want).abs().max() < 0.1 * want.abs().max()


def test_the_backend_may_be_any_function() -> None:
    block = build("gla")
    x = sequence(block)
    definition = registry.recurrence("linear_attention").definition
    torch.testing.assert_close(block(x, backend=definition)[0], block(x, backend="chunkwise")[0])


def test_a_model_without_a_block_of_its_own_gets_the_plain_layer() -> None:
    assert Model.block is Block
    block = build("ttt_linear")
    x = sequence(block)
    mixed, _ = block.mixer(block.norm(x))
    assert torch.equal(block(x)[0], x + block.output(mixed))


def test_the_block_of_mamba2_convolves_the_projections_of_its_input() -> None:
    """x, B and C are parallel projections of norm(u), convolved together; Δ is one too, and is not."""
    block = build("mamba2")
    u = sequence(block)
    mixer, normed = block.mixer, block.norm(u)
    H, K, V = (mixer.shape[letter] for letter in "HKV")
    parts = torch.cat([normed @ W.weight.mT for W in (mixer.input, mixer.B, mixer.C)], dim=-1)
    convolved = torch.stack(
        [
            sum(
                block.convolution.weight[:, 0, 3 - lag] * parts[:, t - lag] for lag in range(min(t, 3) + 1)
            ) + block.convolution.bias
            for t in range(u.shape[1])
        ],
        dim=1,
    )  # fmt: skip
    x, b, c = functional.silu(convolved).split([H * V, K, K], dim=-1)
    step = functional.softplus(normed @ mixer.step.weight.mT + mixer.step_bias)
    S, y = u.new_zeros(u.shape[0], H, K, V), []
    for t in range(u.shape[1]):
        x_t = x[:, t].unflatten(-1, (H, V))
        decay = torch.exp(-step[:, t] * torch.exp(mixer.A_log))
        S = decay[..., None, None] * S + torch.einsum("bk,bh,bhv->bhkv", b[:, t], step[:, t], x_t)
        y.append((torch.einsum("bhkv,bk->bhv", S, c[:, t]) + mixer.D.unsqueeze(-1) * x_t).flatten(-2))
    gated = torch.stack(y, dim=1) * functional.silu(normed @ block.gate_projection.weight.mT)
    want = u + block.gated_norm(gated) @ block.output.weight.mT
    torch.testing.assert_close(block(u)[0], want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "sizes", "hidden"),
    [
        ("lcsm:1-1-1-0", {"H": 1, "K": 4, "V": 512}, 682),
        ("hgrn2", {"H": 4, "K": 128, "V": 128}, 1365),
        ("gateloop", {"C": 512}, 1024),
    ],
)
def test_channel_mixing_is_as_wide_as_published_or_as_asked(
    name: str, sizes: dict[str, int], hidden: int
) -> None:
    model = registry.model(name).cls
    assert model.block(model(sizes)).channels.up.out_features == hidden
    asked = model.block(model(sizes), hidden=550)
    assert asked.channels.up.out_features == asked.channels.down.in_features == 550


D, N, HIDDEN = 16, 4, 7
AFFINE, NORM, SCALE = D * D + D, 2 * D, D  # a map with bias; a layer norm; an RMS norm
PERCEPTRON = 2 * D * HIDDEN + HIDDEN + D
HEADS = {"H": 2, "K": 4, "V": 8}


@pytest.mark.parametrize(
    ("name", "sizes", "options", "count"),
    [
        ("s4", {"C": D, "N": N}, {}, 8 * D * N // 2 + 2 * D + NORM + 2 * AFFINE),
        ("s4d_lin", {"C": D, "N": N}, {}, 4 * D * N // 2 + 2 * D + NORM + 2 * AFFINE),
        ("dss_exp", {"C": D, "N": N}, {}, 2 * N + 2 * D * N + 2 * D + NORM + AFFINE),
        ("s5", {"C": D}, {}, 4 * D * D + 4 * D + NORM + AFFINE),
        ("lru", {"C": D}, {}, 4 * D * D + 4 * D + NORM + 2 * AFFINE),
        ("mingru", {"C": D}, {"hidden": HIDDEN}, 5 * D + 2 * SCALE + 4 * AFFINE + PERCEPTRON),
        ("minlstm", {"C": D}, {"hidden": HIDDEN}, 5 * D + 2 * SCALE + 5 * AFFINE + PERCEPTRON),
        ("linear_transformer", HEADS, {"hidden": HIDDEN}, 2 * D * 8 + D * D + AFFINE + 2 * NORM + PERCEPTRON),
        ("cosformer", HEADS, {"hidden": HIDDEN}, 2 * D * 8 + D * D + AFFINE + 2 * NORM + PERCEPTRON),
        ("tnn", {"C": D}, {}, 3 * AFFINE + (2 * 32 + 33 * 32 + 33 * D) + 3 * AFFINE),
    ],
)  # fmt: skip
def test_parameters_counted_by_hand(
    name: str, sizes: dict[str, int], options: dict[str, int], count: int
) -> None:
    model = registry.model(name).cls
    block = model.block(model(sizes), **options)
    assert sum(parameter.numel() for parameter in block.parameters()) == count


@pytest.mark.parametrize("name", ["tnn", "mingru", "minlstm_pos"])
def test_a_mixer_may_be_wider_than_its_layer(name: str) -> None:
    """TNN's gated unit has three times the channels of its layer, minGRU's expansion is the paper's α."""
    model = registry.model(f"{name}:width=4").cls
    block = model.block(model({"C": 12})).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(block.mixer(x)[0], block.mixer.definition(x), rtol=1e-10, atol=1e-11)
    assert block(x)[0].shape == x.shape and block.output.in_features == 12
    with pytest.raises(UsageError, match="width"):
        model({"C": 12}, width=0)


def test_an_odd_width_is_refused_where_the_mixer_is_twice_as_wide() -> None:
    with pytest.raises(UsageError, match="odd"):
        build_block("mamba", Shape(B=1, T=1, D=7, N=2))


@pytest.mark.parametrize(("name", "backend"), [("mamba", "sequential"), ("gla", "chunkwise")])
def test_training_on_a_copy_task_reduces_the_loss(name: str, backend: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(4, (16, 8))
    delayed = torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)  # the token before
    block = build_block(name, shape_of(name) if name != "mamba" else Shape(B=1, T=1, D=32, N=4))
    network = nn.ModuleList([nn.Embedding(4, block.width), block, nn.Linear(block.width, 4)])
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
    losses = []
    for _ in range(40):
        y, _ = block(network[0](tokens), backend=backend)
        loss = functional.cross_entropy(network[2](y).flatten(0, 1), delayed.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.4 * losses[0], losses[::8]
