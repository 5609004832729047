from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from functools import reduce

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

from danalab.errors import UserError  # noqa: E402
from danalab.optim import ADana, DanaMK4, DanaMuon, DanaStar, DanaStarMK4  # noqa: E402
from danalab.optim.optax import adana, dana_mk4, dana_muon, dana_star, dana_star_mk4  # noqa: E402
from danalab.theory.curve import enable_x64  # noqa: E402

TWINS = {"adana": adana, "dana-mk4": dana_mk4, "dana-star": dana_star, "dana-star-mk4": dana_star_mk4}
CLASSES = {"adana": ADana, "dana-mk4": DanaMK4, "dana-star": DanaStar, "dana-star-mk4": DanaStarMK4}
SPECIAL = ("missing_grads", "two_groups_no_decay")


class Golden:
    """The golden cases of one optimizer."""

    def __init__(self, folder, name):
        index = json.loads((folder / "golden_index.json").read_text())["optimizers"]
        self.cases = [case for case in index["cases"] if case["optimizer"] == name]
        self.names = [p["name"] for p in index["param_sets"]["general"]]
        self.shapes = [tuple(p["shape"]) for p in index["param_sets"]["general"]]
        self.snapshots = index["snapshot_steps"]
        self.inputs = np.load(folder / "optimizers_inputs.npz")
        self.want = np.load(folder / f"optimizers_{name.replace('-', '_')}.npz")

    def case(self, ending):
        return next(case for case in self.cases if case["id"].endswith(ending))

    def data(self, case):
        params, grads = self.inputs[case["inputs"] + "/params0"], self.inputs[case["inputs"] + "/grads"]
        return params, grads, self.inputs[f"schedule_{case['schedule']}/lr"]

    def split(self, flat):
        ends = np.cumsum([int(np.prod(s)) for s in self.shapes])
        parts = np.split(flat, ends[:-1], axis=-1)
        return dict(
            zip(
                self.names,
                (p.reshape(*p.shape[:-1], *s) for p, s in zip(parts, self.shapes, strict=True)),
                strict=True,
            )
        )

    def join(self, params):
        return np.concatenate([np.asarray(params[name]).reshape(-1) for name in self.names])


def settings_of(case):
    h = case["hyperparameters"]
    given = {"delta": h["delta"], "kappa": h["kappa"], "eps": h["epsilon"], "gamma3": h["gamma_3_factor"]}
    given |= {"weight_decay": h["weight_decay"], "wd_ts": h["wd_ts"] if h["wd_decaying"] else None}
    return given if h["clipsnr"] is None else {**given, "clipsnr": h["clipsnr"]}


@pytest.fixture(params=list(TWINS))
def family(request, golden):
    return request.param, Golden(golden, request.param)


@pytest.mark.sample(1)
@pytest.mark.parametrize("double", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_all_golden_cases_are_reproduced(family, double):
    """All ordinary cases of an optimizer at once: their settings are traced, a constant decay is wd_ts = inf."""
    name, data = family
    cases = [case for case in data.cases if not case["id"].endswith(SPECIAL)]
    assert len(cases) >= 27
    rows = []
    for case in cases:
        s = settings_of(case)
        rows.append({**s, "wd_ts": s["wd_ts"] or np.inf, "peak_lr": case["peak_lr"]})
    stack = {key: np.asarray([row[key] for row in rows]) for key in rows[0]}
    params, grads, rates = (np.stack(x) for x in zip(*map(data.data, cases), strict=True))

    def run(settings, params, grads, rates):
        optimizer = TWINS[name](lambda step: rates[step], **settings)

        def step(carry, g):
            updates, state = optimizer.update(g, carry[1], carry[0])
            params = optax.apply_updates(carry[0], updates)
            return (params, state), params

        (_, state), seen = jax.lax.scan(step, (params, optimizer.init(params)), grads)
        return seen, state

    with enable_x64():
        dtype = jnp.float64 if double else jnp.float32
        trees = [
            {k: jnp.asarray(v, dtype) for k, v in x.items()} for x in (data.split(params), data.split(grads))
        ]
        stack = {k: jnp.asarray(v, dtype) for k, v in stack.items()}
        seen, state = jax.jit(jax.vmap(run))(stack, *trees, jnp.asarray(rates, dtype))
        assert seen["w"].dtype == dtype
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if double else {"rtol": 5e-5, "atol": 5e-6}
    for i, case in enumerate(cases):
        for j, snapshot in enumerate(data.snapshots):
            got = data.join({k: v[i, snapshot - 1] for k, v in seen.items()})
            np.testing.assert_allclose(
                got, data.want["params_exact"][case["row"], j], **tolerance, err_msg=case["id"]
            )
        if double:
            v = data.join({k: x[i] for k, x in state.v.items()})
            np.testing.assert_allclose(v, data.want["state_v_exact"][case["row"]], rtol=1e-8, atol=1e-14)


@pytest.mark.sample(1)
@pytest.mark.parametrize("ending", SPECIAL)
def test_missing_gradients_and_undecayed_parameters_are_as_in_torch(golden, ending):
    data = Golden(golden, "dana-star-mk4")
    case = data.case(ending)
    flat, grads, rates = data.data(case)
    present = data.inputs[case["inputs"] + "/present"]
    with enable_x64():
        rates = jnp.asarray(rates)
        mask = {name: name not in case["no_decay_params"] for name in data.names}
        optimizer = dana_star_mk4(
            lambda step: rates[step], **settings_of(case), peak_lr=case["peak_lr"], decay_mask=mask
        )
        params = {k: jnp.asarray(v) for k, v in data.split(flat).items()}
        state = optimizer.init(params)
        update = jax.jit(optimizer.update)
        for step, row in enumerate(grads, start=1):
            parts = data.split(row)
            given = {
                k: jnp.asarray(parts[k]) if present[step - 1, i] else None for i, k in enumerate(data.names)
            }
            updates, state = update(given, state, params)
            params = optax.apply_updates(params, updates)
            if step in data.snapshots:
                want = data.want["params_exact"][case["row"], data.snapshots.index(step)]
                np.testing.assert_allclose(data.join(params), want, rtol=1e-9, atol=1e-12)
    assert {k: int(v) for k, v in state.steps.items()} == dict(
        zip(data.names, present.sum(0).tolist(), strict=True)
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"kappa": 0.8, "weight_decay": 0.05, "wd_ts": 20.0},
        {"omega": 8.0, "horizon": 200, "alpha_offset": 0.0},
    ],
    ids=["decaying", "omega"],
)
@pytest.mark.parametrize("name", list(TWINS))
def test_two_hundred_steps_of_a_decaying_rate_agree_with_the_torch_class(name, settings):
    steps, peak = 200, 0.01
    rng = np.random.default_rng(0)
    start = rng.standard_normal((6, 5)).astype(np.float32)
    grads = (rng.standard_normal((steps, 6, 5)) * rng.choice([0.0, 1.0, 10.0], (steps, 6, 5))).astype(
        np.float32
    )
    weight = torch.nn.Parameter(torch.tensor(start))
    theirs = CLASSES[name]([weight], lr=peak, **settings)
    for k, g in enumerate(grads):
        theirs.param_groups[0]["lr"] = peak * (1 - k / steps)
        weight.grad = torch.tensor(g)
        theirs.step()
    optimizer = TWINS[name](lambda step: peak * (1 - step / steps), peak_lr=peak, **settings)

    def step(carry, g):
        updates, state = optimizer.update(g, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    first = jnp.asarray(start)
    (params, _), _ = jax.jit(lambda: jax.lax.scan(step, (first, optimizer.init(first)), jnp.asarray(grads)))()
    np.testing.assert_allclose(np.asarray(params), weight.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_the_bound_of_the_decay_is_that_of_the_torch_class():
    """It acts in the first steps: without it they would take 0.4 and more of a weight."""
    for settings in ({"omega": 8.0, "horizon": 200}, {"omega": 8.0, "wd_ts": 20.0}):
        p = torch.nn.Parameter(torch.ones(3))
        torch_side = ADana([p], lr=0.01, **settings)
        twin = adana(0.01, **settings)
        params = jnp.ones(3)
        p.grad = torch.zeros(3)
        torch_side.step()
        change, _ = twin.update(jnp.zeros(3), twin.init(params), params)
        np.testing.assert_allclose(params + change, p.detach().numpy(), rtol=1e-6)


def test_both_forms_of_weight_decay_are_refused_together_and_omega_may_be_injected():
    with pytest.raises(UserError, match="omega needs horizon"):
        adana(1e-3, omega=4.0)
    with pytest.raises(UserError, match="omega and weight_decay both set"):
        adana(0.1, omega=4.0, horizon=100, weight_decay=0.1)
    with pytest.raises(UserError, match="horizon and wd_ts both set"):
        adana(0.1, omega=4.0, horizon=100, wd_ts=10)
    for build in (adana, dana_muon):
        with pytest.raises(UserError, match="horizon is 100 without omega"):
            build(0.1, horizon=100)
    with pytest.raises(UserError, match="omega and weight_decay both set"):
        dana_muon(0.1, omega=4.0, horizon=100, weight_decay=0.1)
    params = {"w": jnp.ones(3)}
    with pytest.raises(UserError, match="horizon and wd_ts both set"):
        optax.inject_hyperparams(adana)(learning_rate=0.1, omega=4.0, horizon=100, wd_ts=10).init(params)
    injected = optax.inject_hyperparams(adana)(learning_rate=0.1, omega=4.0, horizon=100, peak_lr=0.1)
    found, _ = injected.update(params, injected.init(params), params)
    plain = adana(0.1, omega=4.0, horizon=100)
    want, _ = plain.update(params, plain.init(params), params)
    np.testing.assert_allclose(found["w"], want["w"], rtol=1e-6)


@pytest.mark.parametrize("decay", [{"omega": 4.0, "horizon": 100}, {"weight_decay": 0.01}])
@pytest.mark.parametrize("rate", [0.1, lambda step: 0.1 * step])
def test_injected_rates_need_their_peak_and_masks_must_be_static(rate, decay):
    params = {"w": jnp.ones(3), "b": jnp.ones(2)}
    inject = optax.inject_hyperparams(adana)
    with pytest.raises(UserError, match="peak_lr"):
        inject(learning_rate=rate, **decay).init(params)
    undecayed = inject(learning_rate=rate)
    updates, _ = jax.jit(undecayed.update)(params, undecayed.init(params), params)
    assert jnp.isfinite(updates["w"]).all()

    def mask(tree):
        return jax.tree.map(lambda x: x.ndim > 1, tree)

    injected = inject(rate, **decay, peak_lr=0.1, decay_mask=mask)
    with pytest.raises(UserError, match="static_args"):
        injected.init(params)


def test_the_members_have_one_signature_and_two_of_them_a_clip_too():
    plain, clipped, star, star_clipped = (inspect.signature(member).parameters for member in TWINS.values())
    assert list(plain)[:5] == ["learning_rate", "delta", "kappa", "eps", "gamma3"]
    assert plain == star
    assert clipped == star_clipped
    assert {name: each for name, each in clipped.items() if name != "clipsnr"} == plain
    assert clipped["clipsnr"].default == 2.0
    for arguments, settings in (((0.1, 8.0), {}), ((), {}), ((0.1,), {"clipsnr": 2.0})):
        with pytest.raises(TypeError, match="argument"):
            adana(*arguments, **settings)


def test_the_transformations_compose_with_optax():
    clipped = optax.chain(optax.clip_by_global_norm(1.0), adana(0.1))
    params = {"w": jnp.ones(3)}
    updates, _ = clipped.update({"w": jnp.full(3, 1e6)}, clipped.init(params), params)
    assert np.isfinite(np.asarray(updates["w"])).all()
    injected = optax.inject_hyperparams(adana)(learning_rate=0.1, kappa=0.7)
    state = injected.init(params)
    assert float(state.hyperparams["kappa"]) == pytest.approx(0.7)
    injected.update({"w": jnp.ones(3)}, state, params)


def test_moments_of_bfloat16_parameters_are_float32():
    optimizer = dana_star(0.1)
    params = {"w": jnp.ones(3, jnp.bfloat16)}
    state = optimizer.init(params)
    updates, state = optimizer.update({"w": jnp.ones(3, jnp.bfloat16)}, state, params)
    assert updates["w"].dtype == jnp.bfloat16
    assert {state.m["w"].dtype, state.v["w"].dtype, state.tau["w"].dtype} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    "settings",
    [
        *(
            {"kappa": 1.5},
            {"delta": 0.0},
            {"weight_decay": -1.0},
            {"wd_ts": 0.0},
            {"eps": -1.0},
            {"gamma3": -1.0},
        ),
        {"alpha_offset": -1.0},
        *({"delta": float("inf")}, {"gamma3": float("nan")}, {"peak_lr": 0.0}, {"delta": "8"}),
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        adana(0.1, **settings)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_learning_rate_that_means_nothing_is_refused(rate):
    with pytest.raises(UserError, match="learning_rate"):
        adana(rate)


@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_parameters_that_are_no_real_numbers_are_refused_by_name(dtype):
    with pytest.raises(UserError, match=rf"'w'.*{dtype}"):
        adana(0.1).init({"b": jnp.ones(2), "w": jnp.ones(2, dtype)})


def test_no_parameters_are_no_error_as_where_a_mask_leaves_none():
    optimizer = optax.masked(adana(0.1), {"w": False})
    params = {"w": jnp.ones(2)}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert updates["w"] is params["w"]


@pytest.mark.parametrize("follower", [{"weight_decay": 0.1}])
def test_a_schedule_that_something_follows_needs_its_peak(follower):
    with pytest.raises(UserError, match="peak_lr"):
        adana(optax.cosine_decay_schedule(0.1, 10), **follower)


def test_without_optax_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    monkeypatch.delitem(sys.modules, "danalab.optim.optax")
    with pytest.raises(UserError, match=re.escape("needs optax: pip install 'danalab[theory]'")):
        importlib.import_module("danalab.optim.optax")


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.5, "wd_ts": 10.0, "kappa": 0.75, "delta": 4.0},
        {"weight_decay": 0.5, "aux_lr_factor": 0.5, "matched_rms": 0.3, "clipsnr": 1.0},
        {"omega": 4.0, "horizon": 500},
    ],
    ids=["decaying", "factors", "omega"],
)
def test_dana_muon_is_the_torch_class_on_matrices_stacks_and_the_rest(settings):
    steps, peak = 12, 0.02
    shapes = {
        "layer.weight": (6, 10),
        "tall.weight": (9, 4),
        "experts": (3, 4, 6),
        "embed": (12, 4),
        "head.weight": (12, 4),
        "bias": (7,),
    }
    rng = np.random.default_rng(0)
    start = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    grads = [{name: rng.standard_normal(shape) for name, shape in shapes.items()} for _ in range(steps)]
    weights = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    kinds = {"layer.weight": "matrix", "tall.weight": "matrix", "experts": "experts", "embed": "embedding",
             "head.weight": "head"}  # fmt: skip
    groups = [{"params": [(name, p)], "kind": kinds.get(name, "vector")} for name, p in weights.items()]
    for group in groups:
        group |= {} if group["kind"] in ("matrix", "experts", "head") else {"weight_decay": 0.0}
    theirs = DanaMuon(groups, lr=peak, **settings)
    twin = dana_muon(lambda step: peak * (1 - jnp.float64(step) / (2 * steps)), peak_lr=peak, **settings)
    with enable_x64():
        params = {name: jnp.asarray(value) for name, value in start.items()}
        state = twin.init(params)
        update = jax.jit(twin.update)
        for k, row in enumerate(grads):
            for group in theirs.param_groups:
                group["lr"] = group["peak_lr"] * (1 - k / (2 * steps))
            for name, p in weights.items():
                p.grad = torch.tensor(row[name])
            theirs.step()
            changes, state = update({name: jnp.asarray(g) for name, g in row.items()}, state, params)
            params = optax.apply_updates(params, changes)
        for name, p in weights.items():
            np.testing.assert_allclose(params[name], p.detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def test_dana_muon_takes_a_choice_of_matrices_and_refuses_a_schedule_without_the_peak_it_needs():
    params = {name: jnp.ones((3, 4)) for name in ("a", "embed", "gone")}
    grads = {"a": jnp.eye(3, 4), "embed": jnp.eye(3, 4), "gone": None}
    by_name, chosen = dana_muon(0.1), dana_muon(0.1, matrices={"a": False, "embed": True, "gone": True})
    first, second = (each.update(grads, each.init(params), params)[0] for each in (by_name, chosen))
    np.testing.assert_allclose(first["a"], second["embed"])
    # Without a head the table is tied, and its rate a quarter of the rate of one beside a head.
    tied, apart = {"embed": jnp.ones((3, 4))}, {"embed": jnp.ones((3, 4)), "head": jnp.ones((3, 4))}
    slow, fast = (by_name.update(tree, by_name.init(tree), tree)[0]["embed"] for tree in (tied, apart))
    np.testing.assert_allclose(4 * slow, fast, rtol=1e-6)
    np.testing.assert_allclose(first["embed"], second["a"])
    assert not np.allclose(first["a"], first["embed"])
    dana_muon(lambda step: 0.1, weight_decay=0.1)
    with pytest.raises(UserError, match="peak_lr"):
        dana_muon(lambda step: 0.1, omega=4.0, horizon=100)
    for settings, words in (({"kappa": 2.0}, "kappa"), ({"aux_lr_factor": -1.0}, "aux_lr_factor is -1")):
        with pytest.raises(UserError, match=words):
            dana_muon(0.1, **settings)
    injected = optax.inject_hyperparams(dana_muon)(0.1, kappa=0.7)
    updates, _ = injected.update(params, injected.init(params), params)
    assert np.isfinite(np.asarray(updates["a"])).all()


def nested(arrays):
    """a.b -> {a: {b: the array}}."""
    tree = {}
    for name, array in arrays.items():
        *outer, last = name.split(".")
        place = tree
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = jnp.asarray(array)
    return tree


MATRICES = [
    ("w", (6, 5)),
    ("stack", (3, 6, 5)),
    ("mlp.experts.up", (8, 5, 6)),
    ("conv.weight", (8, 4, 3)),
    ("stem.weight", (4, 3, 2, 2)),
    ("wte.weight", (12, 4)),
    ("A_log", (6, 4)),
    ("pos", (1, 6, 4)),
    ("norm.weight", (4, 4)),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("parameters", [MATRICES, [("lm_head.weight", (12, 4))]], ids=["tied", "a head"])
def test_dana_muon_takes_the_same_parameters_for_matrices_as_the_class(parameters):
    rng = np.random.default_rng(0)
    starts = {name: rng.standard_normal(shape).astype("float32") for name, shape in parameters}
    gradients = {name: rng.standard_normal(shape).astype("float32") for name, shape in parameters}
    transformation, tree = dana_muon(0.1), nested(starts)
    moved, _ = jax.jit(transformation.update)(nested(gradients), transformation.init(tree), tree)

    def check(names, named):
        weights = {name: torch.nn.Parameter(torch.tensor(starts[name])) for name in names}
        for name, p in weights.items():
            p.grad = torch.tensor(gradients[name])
        DanaMuon(list(weights.items() if named else weights.values()), lr=0.1).step()
        for name, p in weights.items():
            change = np.asarray(reduce(dict.__getitem__, name.split("."), moved))
            np.testing.assert_allclose(change, p.detach().numpy() - starts[name], atol=2e-6, err_msg=name)

    check(starts, named=True)
    if "w" in starts:
        check(("w", "stack"), named=False)


def test_kernels_of_flax_are_matrices_of_inputs_by_outputs():
    kernel = jnp.asarray(np.random.default_rng(0).standard_normal((3, 3, 4, 8)).astype("float32"))
    for tree in ({"Conv_0": {"kernel": kernel}}, {"Dense_0": {"kernel": kernel.reshape(36, 8)}}):
        transformation = dana_muon(0.1)
        updates, _ = jax.jit(transformation.update)(tree, transformation.init(tree), tree)
        singular = jnp.linalg.svd(jax.tree.leaves(updates)[0].reshape(36, 8), compute_uv=False)
        assert singular.max() < 1.8 * singular.min()


@pytest.mark.parametrize("member", [*TWINS.values(), dana_muon])
def test_update_tolerates_extra_arguments_and_settings_may_be_numpys(member):
    transformation = member(np.float32(1e-3), weight_decay=np.float64(1e-3), wd_ts=np.int64(10))
    params = {"w": jnp.ones((2, 2))}
    updates, _ = transformation.update(params, transformation.init(params), params, value=1.0)
    assert updates["w"].dtype == jnp.float32
    with pytest.raises(UserError, match="kappa"):
        member(1e-3, kappa=np.float32(2))
