"""A model's weights as the native back end reads them: joined maps, packed matrices, gains in float32.

A matrix [N, K] is packed into panels of P outputs, two vectors of the compiled target, [N / P, K, P], in float32,
bfloat16, or int8 with one scale for each output. Maps of the same input are joined; of a gated MLP the panels of gate
and up alternate.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.inference.scheduler import BlockPool
from danalab.models.decoder import Block, Decoder
from danalab.models.delta_rule import GatedDeltaNet
from danalab.models.layers.attention import Attention
from danalab.models.layers.basic import MLP, Norm
from danalab.models.moe.mixture import MixtureOfExperts
from danalab.models.resonance.mixer import Resonator

KINDS = {"float32": 0, "bfloat16": 1, "int8": 2}
ACTIVATIONS = {"gelu": 0, "gelu-tanh": 1, "swiglu": 2}
ATTENTION, DELTA_RULE, OSCILLATORS = range(3)


# ---- the structures of model.h, field by field as there ----

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


def _structure(name: str, fields: dict[str, Any]) -> Any:
    """A class of ctypes."""
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


def _of(kind: Any, names: str) -> dict[str, Any]:
    """Fields of one kind."""
    return dict.fromkeys(names.split(), kind)


MatrixStruct = _structure("MatrixStruct", _of(_P, "data scale bias") | _of(_I, "outputs inputs kind unused"))
NormStruct = _structure("NormStruct", _of(_P, "gain shift") | {"eps": _F, "centred": _I})
MlpStruct = _structure("MlpStruct", _of(MatrixStruct, "up down"))
ExpertsStruct = _structure(
    "ExpertsStruct",
    {"experts": _P, "router": MatrixStruct, "shared": MlpStruct, "shared_gate": _P}
    | _of(_I, "count chosen renormalise has_shared"),
)
LayerStruct = _structure(
    "LayerStruct",
    _of(NormStruct, "mixer_norm mlp_norm")
    | _of(MatrixStruct, "in_ out")
    | {"mlp": MlpStruct, "experts": _P}
    | _of(NormStruct, "head_norm_q head_norm_k")
    | _of(_P, "keys values state taps first second through")
    | {"state_size": _L}
    | _of(_I, "mixer gated taps_size modes key_heads value_heads key_dim value_dim"),
)
ModelStruct = _structure(
    "ModelStruct",
    _of(_P, "layers embedding positions rotary")
    | {"final_norm": NormStruct, "head": MatrixStruct}
    | _of(_I, "n_layers d_model heads kv_heads head_dim pairs activation")
    | {"residual_scale": _F},
)
BatchStruct = _structure(
    "BatchStruct",
    _of(_P, "tokens positions sequence_of first slots tables outputs logits")
    | _of(_I, "rows sequences n_outputs table_width"),
)
BufferStruct = _structure(
    "BufferStruct",
    _of(_P, "x normed wide mixed hidden added copies weights chosen")
    | _of(_L, "d_stride wide_stride mixed_stride hidden_stride copies_stride"),
)
STRUCTS = (
    *(MatrixStruct, NormStruct, MlpStruct, ExpertsStruct),
    *(LayerStruct, ModelStruct, BatchStruct, BufferStruct),
)
"""All structures, in the order of `sizes` in step.cpp."""


# ---- their contents ----


class NativeWeights:
    """The structures of a model, with their tensors. A panel has `panel` outputs, a vector `lanes` floats."""

    def __init__(
        self,
        panel: int,
        lanes: int,
        model: Decoder,
        pool: BlockPool | None,
        weight_dtype: str,
        slots: int,
        rows: int,
    ):
        self._panel, self._lanes = panel, lanes
        self._kept: list[Any] = []
        self.products = 0
        """Multiply-adds of matrices for one token; of experts, all of them."""
        self._dtype, self._pool, self._slots = weight_dtype, pool, slots
        config, sparsity = model.config, model.config.sparsity
        layers = (LayerStruct * config.n_layers)(*[self._layer(block, config) for block in model.blocks])
        self.vocab_width = _padded(config.vocab_size, panel)
        self.model = ModelStruct(
            layers=self._address(layers),
            embedding=self._floats(model.token_embedding.weight),
            positions=None
            if model.position_embedding is None
            else self._floats(model.position_embedding.weight),
            rotary=None if model.rotary is None else self._floats(model.rotary.table),
            final_norm=self._norm(model.final_norm),
            head=self._matrix([model.head_weight]),
            n_layers=config.n_layers,
            d_model=config.d_model,
            heads=config.n_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            pairs=0 if model.rotary is None else model.rotary.table.shape[2],
            activation=ACTIVATIONS[config.architecture.activation],
            residual_scale=config.residual_scale,
        )
        d, chosen = _padded(config.d_model, panel), 1 if sparsity is None else sparsity.top_k
        wide = max([layer.in_.outputs for layer in layers] + [0 if sparsity is None else sparsity.n_experts])
        mixed = max(layer.out.inputs for layer in layers)
        hidden = max(
            [config.mlp_dim] + ([] if sparsity is None else [sparsity.expert_dim, sparsity.shared_dim])
        )
        wide, mixed, hidden = (_padded(width, panel) for width in (wide, mixed, hidden))
        copies = 0 if sparsity is None else rows * chosen
        sizes = {
            "x": rows * d,
            "normed": rows * d,
            "wide": rows * wide,
            "mixed": rows * mixed,
            "hidden": rows * chosen * hidden,
            "added": rows * d,
            "copies": copies * d,
            "weights": copies,
            "chosen": copies,
        }
        strides = {"d": d, "wide": wide, "mixed": mixed, "hidden": hidden, "copies": d}
        self.buffers = BufferStruct(
            **{name: self._empty(size) for name, size in sizes.items()},
            **{f"{name}_stride": stride for name, stride in strides.items()},
        )

    # ---- layers ----

    def _layer(self, block: Any, config: Any) -> Any:
        block = cast(Block, block)
        layer = LayerStruct(mixer_norm=self._norm(block.attention_norm), mlp_norm=self._norm(block.mlp_norm))
        mixer = block.attention
        if isinstance(mixer, Attention):
            self._attention(layer, mixer, config)
        elif isinstance(mixer, GatedDeltaNet):
            self._delta_rule(layer, mixer)
        else:
            assert isinstance(mixer, Resonator)
            self._oscillators(layer, mixer, config)
        if isinstance(block.mlp, MixtureOfExperts):
            layer.experts = self._experts(block.mlp, config)
        else:
            layer.mlp = self._mlp(block.mlp)
        return layer

    def _attention(self, layer: Any, mixer: Attention, config: Any) -> None:
        maps = [mixer.q, mixer.k, mixer.v, *([] if mixer.gate is None else [mixer.gate])]
        layer.in_ = self._matrix([m.weight for m in maps], [m.bias for m in maps])
        layer.out = self._matrix([mixer.out.weight], [mixer.out.bias])
        layer.mixer, layer.gated = ATTENTION, mixer.gate is not None
        if mixer.q_norm is not None and mixer.k_norm is not None:
            layer.head_norm_q, layer.head_norm_k = self._norm(mixer.q_norm), self._norm(mixer.k_norm)
        assert self._pool is not None
        positions = self._pool.n_blocks * self._pool.block_size * config.kv_heads
        layer.keys = self._empty(positions * config.head_dim)
        layer.values = self._empty(positions * _padded(config.head_dim, self._lanes))

    def _delta_rule(self, layer: Any, mixer: GatedDeltaNet) -> None:
        names = ("query", "key", "value", "z", "write", "forget")
        layer.in_ = self._matrix([getattr(mixer, name).weight for name in names])
        layer.out = self._matrix([mixer.out.weight])
        layer.mixer, layer.head_norm_q = DELTA_RULE, self._norm(mixer.norm)
        taps = torch.cat([conv.weight for conv in (mixer.query_conv, mixer.key_conv, mixer.value_conv)])
        layer.taps, layer.taps_size = self._floats(taps.T), taps.shape[1]
        layer.first = self._floats(-mixer.forgetting.A_log.exp())
        layer.second = self._floats(mixer.forgetting.dt_bias)
        layer.value_heads = mixer.write.out_features
        layer.key_heads = mixer.query.out_features // mixer.key_dim
        layer.key_dim, layer.value_dim = mixer.key_dim, mixer.value_dim
        state = layer.value_heads * mixer.key_dim * mixer.value_dim
        self._states(layer, (taps.shape[1] - 1) * taps.shape[0] + state)

    def _oscillators(self, layer: Any, mixer: Resonator, config: Any) -> None:
        d, bank = config.d_model, mixer.bank
        layer.in_ = self._matrix([mixer.v.weight, mixer.g.weight])
        layer.out = self._matrix([mixer.out.weight])
        layer.mixer, layer.modes = OSCILLATORS, 0 if bank is None else bank.modes
        state = 2 * layer.modes * _padded(d, self._lanes)
        if bank is not None:
            gamma, omega = bank.damping_and_frequency(torch.float32)
            poles = torch.polar((-gamma).exp(), omega).repeat_interleave(d // bank.groups, 0)
            layer.first = self._floats(self._by_mode(poles))
            layer.second = self._floats(self._by_mode(bank.amplitudes(gamma).flatten(0, 1)))
            layer.through = self._floats(F.pad(bank.d, (0, _padded(d, self._lanes) - d)))
        self._states(layer, max(state, 1))

    def _states(self, layer: Any, size: int) -> None:
        layer.state, layer.state_size = self._empty(self._slots * size), size

    # ---- MLPs ----

    def _mlp(self, mlp: MLP) -> Any:
        down = self._matrix([mlp.down.weight], [mlp.down.bias])
        if mlp.gate is not None:
            return MlpStruct(up=self._matrix([self._alternating(mlp.gate.weight, mlp.up.weight)]), down=down)
        return MlpStruct(up=self._matrix([mlp.up.weight], [mlp.up.bias]), down=down)

    def _experts(self, layer: MixtureOfExperts, config: Any) -> int:
        stacks, sparsity = layer.experts, config.sparsity
        mlps = []
        for e in range(sparsity.n_experts):
            up = stacks.up.weight[e]
            up = up if stacks.gate is None else self._alternating(stacks.gate.weight[e], up)
            mlps.append(MlpStruct(up=self._matrix([up]), down=self._matrix([stacks.down.weight[e]])))
        experts = ExpertsStruct(
            experts=self._address((MlpStruct * len(mlps))(*mlps)),
            router=self._matrix([layer.router.map.weight], dtype="float32"),
            shared_gate=None if layer.shared_gate is None else self._floats(layer.shared_gate.weight),
            count=sparsity.n_experts,
            chosen=sparsity.top_k,
            renormalise=layer.router.renormalise,
            has_shared=layer.shared is not None,
        )
        if layer.shared is not None:
            experts.shared = self._mlp(layer.shared)
        return self._address(experts)

    # ---- tensors ----

    def _norm(self, norm: Norm) -> Any:
        return NormStruct(
            gain=self._floats(1 + norm.weight if norm.kind == "rmsnorm-1p" else norm.weight),
            shift=None if norm.bias is None else self._floats(norm.bias),
            eps=norm.eps,
            centred=norm.kind == "layernorm",
        )

    def _matrix(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor | None] = (), dtype: str | None = None
    ) -> Any:
        dtype = dtype or self._dtype
        weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        outputs, inputs = weight.shape
        beyond = _padded(outputs, self._panel) - outputs
        scale = None
        if dtype == "int8":
            weight, scales = quantise(weight)
            scale = self._floats(F.pad(scales, (0, beyond)))
        bias = None
        if any(each is not None for each in biases):
            parts = [torch.zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)]
            bias = self._floats(F.pad(torch.cat(parts), (0, beyond)))
        weight = _with_rows(weight.to(getattr(torch, dtype)), beyond)
        packed = weight.view(-1, self._panel, inputs).transpose(1, 2)
        if dtype == "bfloat16":  # outputs i and i + lanes side by side
            packed = packed.unflatten(-1, (2, self._lanes)).transpose(-2, -1)
        self.products += outputs * inputs
        return MatrixStruct(self._pointer(packed.contiguous()), scale, bias, outputs, inputs, KINDS[dtype], 0)

    def _alternating(self, gate: Tensor, up: Tensor) -> Tensor:
        """[2 F, K], panels of gate and of up in turn, F rounded up."""
        beyond = _padded(len(gate), self._panel) - len(gate)
        both = [_with_rows(each, beyond).unflatten(0, (-1, self._panel)) for each in (gate, up)]
        return torch.stack(both, dim=1).flatten(0, 2)

    def _by_mode(self, table_DR: Tensor) -> Tensor:
        """Real and imaginary parts, [2, R, D rounded up]."""
        beyond = _padded(len(table_DR), self._lanes) - len(table_DR)
        return F.pad(torch.view_as_real(table_DR).permute(2, 1, 0), (0, beyond))

    def _floats(self, x: Tensor) -> int:
        return self._pointer(x.detach().to(torch.float32, copy=True).contiguous())

    def _empty(self, size: int) -> int:
        return self._pointer(torch.empty(size))

    def _pointer(self, kept: Tensor) -> int:
        self._kept.append(kept)
        return kept.data_ptr()

    def _address(self, structure: Any) -> int:
        self._kept.append(structure)
        return ctypes.addressof(structure)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 [N, K], scale [N]): weight = scale * int8, with the largest entry of each output at 127."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return (wide / scale.unsqueeze(1)).round().to(torch.int8), scale


def _with_rows(weight: Tensor, beyond: int) -> Tensor:
    """The matrix with rows of zeros; itself where there are none, since padding copies."""
    return F.pad(weight, (0, 0, 0, beyond)) if beyond else weight


def _padded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
