"""The structures of model.h, for ctypes; field by field as there."""

import ctypes

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class Matrix(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("data", "scale", "bias")),
        *((name, _I) for name in ("outputs", "inputs", "kind", "unused")),
    ]


class Norm(ctypes.Structure):
    _fields_ = [("gain", _P), ("shift", _P), ("eps", _F), ("centred", _I)]


class Mlp(ctypes.Structure):
    _fields_ = [("up", Matrix), ("down", Matrix)]


class Experts(ctypes.Structure):
    _fields_ = [
        *[("experts", _P), ("router", Matrix), ("shared", Mlp), ("shared_gate", _P)],
        *((name, _I) for name in ("count", "chosen", "renormalise", "has_shared")),
    ]


class Layer(ctypes.Structure):
    _fields_ = [
        *[("mixer_norm", Norm), ("mlp_norm", Norm), ("in_", Matrix), ("out", Matrix), ("mlp", Mlp), ("experts", _P)],
        *[("head_norm_q", Norm), ("head_norm_k", Norm)],
        *((name, _P) for name in ("keys", "values", "state", "taps", "first", "second", "through")),
        ("state_size", _L),
        *((name, _I) for name in ("mixer", "gated", "taps_size", "modes")),
        *((name, _I) for name in ("key_heads", "value_heads", "key_dim", "value_dim")),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("layers", "embedding", "positions", "rotary")),
        *[("final_norm", Norm), ("head", Matrix)],
        *((name, _I) for name in ("n_layers", "d_model", "heads", "kv_heads", "head_dim", "pairs", "activation")),
        ("residual_scale", _F),
    ]


class Batch(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("tokens", "positions", "sequence_of", "first", "slots", "tables", "outputs")),
        ("logits", _P),
        *((name, _I) for name in ("rows", "sequences", "n_outputs", "table_width")),
    ]


class Buffers(ctypes.Structure):
    _fields_ = [
        *((name, _P) for name in ("x", "normed", "wide", "mixed", "hidden", "added", "copies", "weights", "chosen")),
        *((f"{name}_stride", _L) for name in ("d", "wide", "mixed", "hidden", "copies")),
    ]


ALL = (Matrix, Norm, Mlp, Experts, Layer, Model, Batch, Buffers)
"""In the order of `sizes` in step.cpp."""
