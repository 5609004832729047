"""What optimizers take a parameter for: by the type of its module, else by its name, else by its shape."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from danalab.errors import UserError
from danalab.optim import ADana, DanaMuon, DMuon, Manau, Muon, build_optimizer, parameter_kinds
from danalab.optim.optimizers.kinds import kind_by_name, kinds_by_names, undecayed


def holder(type_name: str, base: type[nn.Module] = nn.Module, **parts: nn.Module | tuple[int, ...]) -> nn.Module:
    """A module whose class has a name that people's models have, with parameters of these shapes and children."""
    module = type(type_name, (base,), {})()
    for name, part in parts.items():
        setattr(module, name, part if isinstance(part, nn.Module) else nn.Parameter(torch.randn(part)))
    return module


def linear(rows: int, columns: int) -> nn.Module:
    return nn.Linear(columns, rows, bias=False)


def gain(*shape: int) -> nn.Module:
    return holder("LlamaRMSNorm", weight=shape)


def moe(type_name: str, **gate: nn.Module) -> nn.Module:
    """Experts as in transformers from version 5 on."""
    experts = holder(f"{type_name}Experts", gate_up_proj=(4, 12, 8), down_proj=(4, 8, 6), gate_up_proj_bias=(4, 12))
    return holder(f"{type_name}Block", experts=experts, **gate)


MODELS = {
    "nanogpt": (
        holder(
            "GPT",
            transformer=nn.ModuleDict(
                {
                    "wte": nn.Embedding(65, 64),
                    "wpe": nn.Embedding(64, 64),  # as many positions as the hidden size
                    "h": nn.ModuleList([holder("Block", ln_1=gain(64), c_attn=linear(192, 64), c_proj=linear(64, 64))]),
                    "ln_f": gain(64),
                }
            ),
            lm_head=linear(65, 64),
        ),
        {
            "transformer.wte.weight": "embedding",
            "transformer.wpe.weight": "embedding",
            "transformer.h.0.ln_1.weight": "vector",
            "transformer.h.0.c_attn.weight": "matrix",
            "transformer.h.0.c_proj.weight": "matrix",
            "transformer.ln_f.weight": "vector",
            "lm_head.weight": "head",
        },
    ),
    "mixtral": (
        moe("Mixtral", gate=holder("MixtralTopKRouter", weight=(4, 8))),
        {
            "experts.gate_up_proj": "experts",
            "experts.down_proj": "experts",
            "experts.gate_up_proj_bias": "vector",
            "gate.weight": "router",
        },
    ),
    "qwen": (
        moe("Qwen", gate=linear(4, 8), shared_expert_gate=linear(1, 8), shared=holder("MLP", gate_proj=linear(8, 8))),
        {
            "experts.gate_up_proj": "experts",
            "experts.down_proj": "experts",
            "experts.gate_up_proj_bias": "vector",
            "gate.weight": "router",
            "shared_expert_gate.weight": "router",
            "shared.gate_proj.weight": "matrix",
        },
    ),
    "switch": (
        holder("Sparse", router=holder("Top1Router", classifier=linear(4, 8))),
        {"router.classifier.weight": "router"},
    ),
    "gated mlp": (
        holder("MLP", gate=linear(16, 8), up=linear(16, 8)),
        {"gate.weight": "matrix", "up.weight": "matrix"},
    ),
    "mamba": (
        holder("Mixer", A_log=(16, 4), D=(16,), dt_bias=(16,), in_proj=linear(32, 8),
               conv1d=nn.Conv1d(16, 16, 4, groups=16, bias=False)),
        {"A_log": "vector", "D": "vector", "dt_bias": "vector", "conv1d.weight": "vector", "in_proj.weight": "matrix"},
    ),
    "vit": (
        holder(
            "VisionTransformer",
            cls_token=(1, 1, 16), reg_token=(1, 4, 16), pos_embed=(1, 5, 16), pos=(9, 16), mask_token=(1, 16),
            query=(1, 3, 16),
            patch_embed=holder("PatchEmbed", proj=nn.Conv2d(3, 16, 4, bias=False)),
            ls1=holder("LayerScale", gamma=(16,)), norm=nn.LayerNorm((4, 4)), head=nn.Linear(16, 10),
        ),
        {
            **dict.fromkeys(("cls_token", "reg_token", "pos_embed", "pos", "mask_token", "query"), "embedding"),
            "patch_embed.proj.weight": "matrix",
            **dict.fromkeys(("ls1.gamma", "norm.weight", "norm.bias", "head.bias"), "vector"),
            "head.weight": "head",
        },
    ),
    "swin": (
        holder("WindowAttention", relative_position_bias_table=(49, 4), logit_scale=(4, 1, 1), qkv=linear(24, 8)),
        {"relative_position_bias_table": "embedding", "logit_scale": "vector", "qkv.weight": "matrix"},
    ),
    "convnext": (
        holder("ConvNeXt", stem=nn.Conv2d(3, 8, 4, bias=False), norm=gain(8, 1, 1), layer_scale=(8, 1, 1),
               head=holder("NormMlpClassifierHead", fc=linear(10, 8))),
        {"stem.weight": "matrix", "norm.weight": "vector", "layer_scale": "vector", "head.fc.weight": "head"},
    ),
    "resnet": (
        holder("ResNet", conv1=nn.Conv2d(3, 8, 3, bias=False), fc=linear(10, 8)),
        {"conv1.weight": "matrix", "fc.weight": "head"},
    ),
    "vgg": (
        holder("VGG", classifier=nn.Sequential(linear(8, 8), nn.ReLU(), linear(10, 8))),
        {"classifier.0.weight": "matrix", "classifier.2.weight": "head"},
    ),
    "karpathy's heads": (
        holder("GPT", heads=nn.ModuleList([holder("Head", key=linear(4, 8))]), lm_head=linear(9, 8)),
        {"heads.0.key.weight": "matrix", "lm_head.weight": "head"},
    ),
    "levit": (holder("Attention", attention_biases=(4, 196)), {"attention_biases": "vector"}),
    "xcit": (holder("XCA", temperature=(4, 1, 1)), {"temperature": "vector"}),
    "gpt2 of transformers": (
        holder("Attention", c_attn=holder("Conv1D", weight=(8, 24), bias=(24,))),
        {"c_attn.weight": "matrix", "c_attn.bias": "vector"},
    ),
    "attention of torch": (
        nn.MultiheadAttention(8, 2, add_bias_kv=True, bias=False),
        {"in_proj_weight": "matrix", "bias_k": "vector", "bias_v": "vector", "out_proj.weight": "matrix"},
    ),
    "recurrent": (nn.LSTM(4, 8, bias=False), {"weight_ih_l0": "matrix", "weight_hh_l0": "matrix"}),
    "convolutions of a sequence": (nn.Sequential(nn.Conv1d(4, 6, 3, bias=False)), {"0.weight": "matrix"}),
    "weight norm": (
        holder("M", a=nn.utils.parametrizations.weight_norm(nn.Linear(8, 8, bias=False)),
               b=nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, bias=False), dim=2)),
        {
            "a.parametrizations.weight.original0": "vector",
            "a.parametrizations.weight.original1": "matrix",
            "b.parametrizations.weight.original0": "vector",
            "b.parametrizations.weight.original1": "matrix",
        },
    ),
    "spectral norm": (
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8, bias=False))),
        {"0.parametrizations.weight.original": "matrix"},
    ),
    "t5": (
        holder("T5", shared=nn.Embedding(32, 8), relative_attention_bias=nn.Embedding(12, 4), q=linear(8, 8)),
        {"shared.weight": "embedding", "relative_attention_bias.weight": "embedding", "q.weight": "matrix"},
    ),
}  # fmt: skip

BY_TYPES_ALONE = {"convnext", "resnet", "vgg", "t5", "qwen", "vit"}
"""Models in which names alone tell less: a layer called fc may be hidden, a table may be called anything."""


@pytest.mark.parametrize("name", MODELS)
def test_kinds_of_the_models_that_people_have(name):
    model, want = MODELS[name]
    assert parameter_kinds(model) == want
    if name not in BY_TYPES_ALONE:
        decayed = {"matrix", "experts", "router", "head"}
        shapes = [(key, p.shape) for key, p in model.named_parameters()]
        by_names = dict(zip(dict(shapes), kinds_by_names(shapes), strict=True))
        assert {key: kind in decayed for key, kind in by_names.items()} == {
            k: kind in decayed for k, kind in want.items()
        }


@pytest.mark.slow
def test_kinds_of_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 60,
    }
    moe = {**small, "num_key_value_heads": 2, "num_experts": 4, "moe_intermediate_size": 8, "decoder_sparse_step": 1}
    with torch.device("meta"):
        models = (
            transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**moe)),
            transformers.MambaForCausalLM(transformers.MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=60)),
            transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=16, patch_size=8)),
        )
    kinds = {key.split(".", 1)[1]: kind for model in models for key, kind in parameter_kinds(model).items()}
    block = "layers.0.mlp"
    assert kinds[f"{block}.experts.gate_up_proj"] == kinds[f"{block}.experts.down_proj"] == "experts"
    assert kinds[f"{block}.gate.weight"] == "router"
    assert kinds["layers.0.mixer.A_log"] == kinds["layers.0.mixer.conv1d.weight"] == "vector"
    assert kinds["embeddings.cls_token"] == kinds["embeddings.position_embeddings"] == "embedding"
    assert kinds["weight"] == "head"  # of the classifier


def test_wrappers_of_a_model_change_no_kind():
    model, want = MODELS["mixtral"]
    compiled = holder("Lightning", model=holder("OptimizedModule", _orig_mod=model))  # as torch.compile makes it
    assert list(parameter_kinds(compiled).values()) == list(want.values())


def test_kinds_that_a_module_inside_declares_are_its_own():
    inner = nn.Linear(3, 3)
    inner.parameter_kinds = lambda: {"weight": "head", "bias": "vector"}
    assert parameter_kinds(nn.ModuleDict({"a": inner, "b": nn.Linear(3, 3, bias=False)})) == {
        "a.weight": "head", "a.bias": "vector", "b.weight": "matrix"
    }  # fmt: skip
    inner.parameter_kinds = lambda: {"weight": "matrices"}
    with pytest.raises(UserError, match="'matrices'"):
        parameter_kinds(inner)


def test_large_hidden_matrices_of_a_block_are_no_tables():
    assert kind_by_name("model.layers.3.mlp.up_proj.weight", (14336, 4096)) == "matrix"
    assert kind_by_name("params.layers_3.mlp.Dense_0.kernel", (4096, 14336)) == "matrix"
    assert kind_by_name("params.Dense_0.kernel", (64, 50304)) == "embedding"
    assert kind_by_name("logits.weight", (50304, 64)) == "embedding"


def model_with_exceptions() -> nn.Module:
    model = nn.ModuleDict(
        {"body": nn.Linear(4, 4, bias=False), "swin": nn.Linear(4, 4, bias=False), "ssm": nn.Linear(4, 4, bias=False)}
    )
    model["ssm"].weight._no_weight_decay = True
    model["swin"].no_weight_decay_keywords = lambda: {"weig"}
    outer = nn.ModuleDict({"model": model, "rest": nn.Linear(4, 4, bias=False)})
    model.no_weight_decay = lambda: {"bod*"}
    return outer


def test_models_declare_what_has_no_weight_decay():
    model = model_with_exceptions()
    plain = {"model.body.weight", "model.swin.weight", "model.ssm.weight"}
    assert undecayed(model) == plain
    for name in ("adana", "adamw", "dana-muon", "muon-h"):
        groups = build_optimizer(name, model, lr=1e-3, weight_decay=0.001).param_groups
        assert {name for group in groups if not group["weight_decay"] for name in group["param_names"]} == plain
    muon = Muon(model, weight_decay=0.1)
    assert all(group["use_muon"] for group in muon.param_groups)  # not decayed, and still matrices
    marked = ADana(model.parameters(), weight_decay=0.001)
    assert [len(group["params"]) for group in marked.param_groups if not group["weight_decay"]] == [1]


@pytest.mark.parametrize("cls", [Muon, DMuon, DanaMuon, Manau])
def test_a_guess_is_warned_of_once_and_spares_tables(cls):
    model = nn.ModuleDict(
        {"wte": nn.Embedding(800, 16), "fc": nn.Linear(16, 16), "lm_head": nn.Linear(16, 800, bias=False)}
    )
    for params in (model.parameters(), [{"params": [p]} for p in model.parameters()]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer = cls(params)
        assert [each.category for each in caught] == [UserWarning]
        assert [p.shape for group in optimizer.param_groups if group["use_muon"] for p in group["params"]] == [(16, 16)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls(model), cls(model.named_parameters()), cls([{"params": [model["fc"].weight], "kind": "matrix"}])
        cls([model["fc"].bias]), ADana(model.parameters())


@pytest.mark.parametrize("cls", [Muon, DMuon, DanaMuon])
def test_stacked_experts_of_a_model_are_orthogonalised_one_by_one(cls):
    """Against the polar factor of each expert's gradient: the momentum of a first step is parallel to it."""
    model = moe("Mixtral", gate=linear(4, 8)).double()
    stack = model.experts.gate_up_proj
    before = stack.detach().clone()
    stack.grad = torch.randn_like(stack)
    cls(model, lr=0.1, ns_steps=30, ns_method="polar-express").step()
    for e in range(len(stack)):
        u, _, v = torch.linalg.svd(stack.grad[e], full_matrices=False)
        moved = before[e] - stack.detach()[e]
        torch.testing.assert_close(moved / moved.norm(), (u @ v) / (u @ v).norm(), atol=0.08, rtol=0)


def test_fsdp1_is_refused_in_one_line_where_matrices_matter():
    p = nn.Parameter(torch.ones(8))
    p._fsdp_flattened = True  # as torch marks the shards
    for name, params in (("dana-muon", [p]), ("soap", [("a.weight", p)]), ("muon-h", [{"params": [p]}])):
        with pytest.raises(UserError, match=r"FSDP1.*fully_shard"):
            build_optimizer(name, params)
    with pytest.raises(UserError, match="FSDP1"):
        DanaMuon([p])
    with pytest.raises(UserError, match="FSDP1"):
        ADana([("a.weight", p)], weight_decay=0.001)
    ADana([p], weight_decay=0.001)  # without names everything decays
