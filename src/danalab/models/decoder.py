"""From a configuration to a model with weights: the decoder of every architecture.

    ModelConfig -> build_model -> Decoder: token embedding, blocks, final norm, head

    x = E[tokens];   x = block_i(x) for each i;   hidden = norm(x);   logits = hidden W_head^T
    block_i:   x <- x + c mixer(norm(x));   x <- x + c mlp(norm(x))

Where positions are learned, x = E[tokens] + P[positions] instead of rotations in each block; where the head is tied,
W_head = E. Shapes: B batch, L length, D model dimension, V vocabulary.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from danalab.errors import UserError
from danalab.hardware import host_memory
from danalab.models.cache import Cache, State
from danalab.models.config import ModelConfig, checkpointing_rule
from danalab.models.init import KIND_OF_ROLE, initialise
from danalab.models.layers.attention import Rotary, document_positions, document_starts
from danalab.models.layers.basic import MLP, Embedding, Linear, dropout, make_norm
from danalab.models.loss import chunked_cross_entropy, hoyer_penalty, token_cross_entropy
from danalab.models.moe.mixture import MixtureOfExperts, Routing, stacked
from danalab.models.shards import local_shard


class Decoder(nn.Module):
    """A causal language model. Weights are undefined until `init_weights`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.document_token: int | None = None
        """Token id that starts a new document within a row, with its own attention and positions; None: a row is one
        document. For training and evaluation: text decoded with a cache is one document."""
        self.measures_hoyer = False
        """Whether passes with gradients compute the Hoyer penalty of the embedded tokens, for `take_hoyer`."""
        self.token_embedding = Embedding(
            config.vocab_size, config.d_model, "tied" if config.choice("tied_head") else "embedding"
        )
        learns_positions = config.learned_positions or config.architecture.learned_positions
        self.position_embedding = Embedding(config.seq_len, config.d_model) if learns_positions else None
        has_rotary = config.architecture.rotary
        self.rotary = Rotary(config.seq_len, config.rotated, config.rope_theta) if has_rotary else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.final_norm = make_norm(config, config.d_model)
        self.output_head = (
            None if config.choice("tied_head") else Linear(config.d_model, config.vocab_size, role="head")
        )
        self._routing: list[Routing] = []
        self._hoyer: Tensor | None = None

    # ---- the function ----

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        z_loss: float = 0.0,
        ignore_index: int = -1,
        valid_count: Tensor | float | None = None,
        position_count: Tensor | float | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits [B, L, V] of `tokens` [B, L]; or, given `targets` [B, L], the loss without materialising the logits.

        With targets the result and the other arguments are those of `chunked_cross_entropy`. Training calls `forward`
        so that wrappers of it (data-parallel, sharding) see the whole computation.
        """
        hidden = self.hidden(tokens)
        if targets is None:
            head = self.output_head
            return F.linear(hidden, local_shard(self.head_weight)) if head is None else head(hidden)
        return chunked_cross_entropy(
            hidden,
            self.head_weight,
            targets,
            z_loss,
            ignore_index,
            valid_count=valid_count,
            position_count=position_count,
        )

    def token_losses(
        self, tokens: Tensor, targets: Tensor, *, ignore_index: int = -1, correct: Tensor | None = None
    ) -> Tensor:
        """Cross-entropy of each target [B, L] given `tokens` [B, L], [nats]; 0 where ignored; no gradients.

        `correct`: bool [B, L], is set to whether the target is the most likely token.
        """
        with torch.no_grad():
            return token_cross_entropy(self.hidden(tokens), self.head_weight, targets, ignore_index, correct)

    def hidden(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """The input of the head, [B, L, D], for `tokens` [B, L] of an integer dtype.

        `cache`: from `new_cache`; `tokens` then continue at `cache.length`, which advances (prefill and decoding). Keys
        and values carry no gradient.
        UserError: a wrong shape or dtype, more than seq_len tokens, or (on CPU) an id outside the vocabulary.
        """
        start, starts, position = 0 if cache is None else cache.length, None, None
        self._check(tokens, start)
        if cache is not None:
            if self.document_token is not None:
                raise UserError("a cache holds one document: set document_token to None before decoding")
            position = cache.positions(tokens.shape[1], tokens.device)
        elif self.document_token is not None:
            starts = document_starts(tokens, self.document_token)
            position = document_positions(starts)
        x, rotary = self._embed(tokens, start, position)
        x = dropout(x, self.config.dropout, self.training)
        if cache is None:
            routing = []
            for block in self.blocks:
                x, used = block(x, rotary, None, starts)
                routing += [] if used is None else [used]
            self._routing = routing if torch.is_grad_enabled() else []
        else:
            # Compiled blocks would recompile at every token, which changes shapes. The import of the compiler takes
            # longer than a short text: without it nothing is compiled.
            with (
                torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
            ):
                for block, state in zip(self.blocks, cache.states, strict=True):
                    x, _ = block(x, rotary, state)
            cache.advance(tokens.shape[1])
        return self.final_norm(x)

    def _embed(self, tokens: Tensor, start: int, position: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(vectors of the tokens, rotations for the blocks); `position` [B, L], or None: from `start` on."""
        x = self.token_embedding(tokens)
        if self.measures_hoyer and torch.is_grad_enabled():
            self._hoyer = hoyer_penalty(x)
        if position is None:
            position = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        if self.position_embedding is not None:
            x = x + self.position_embedding(position)
        return x, None if self.rotary is None else self.rotary(position)

    def take_hoyer(self) -> Tensor | None:
        """The Hoyer penalty of the last pass's tokens, with its gradient; None if not measured or already taken."""
        penalty, self._hoyer = self._hoyer, None
        return penalty

    def take_routing(self) -> Routing | None:
        """The use of experts in the last pass with gradients, as sums [layers with experts, ...], and None afterwards.

        None where there are no experts. The tensors carry the gradient for `danalab.models.moe.mixture`.
        """
        routing, self._routing = self._routing, []
        return stacked(routing) if routing else None

    @property
    def head_weight(self) -> nn.Parameter:
        """The head's matrix [V, D]: logits = hidden @ head_weight.T."""
        return cast(nn.Parameter, (self.output_head or self.token_embedding).weight)

    def new_cache(self) -> Cache:
        """An empty decoding state for any number of sequences of up to seq_len tokens."""
        return Cache([block.attention.new_state(self.config.seq_len) for block in cast(Any, self.blocks)])

    def _check(self, tokens: Tensor, start: int) -> None:
        if tokens.ndim != 2 or tokens.numel() == 0 or tokens.dtype not in (torch.int64, torch.int32):
            dtype = str(tokens.dtype).removeprefix("torch.")
            raise UserError(
                f"tokens are {dtype} {list(tokens.shape)}; they must be int64 or int32 [batch, length] and not empty"
            )
        if start + tokens.shape[1] > self.config.seq_len:
            more = f" after {start} in the cache" if start else ""
            raise UserError(
                f"{tokens.shape[1]} tokens{more} are more than the model's seq_len {self.config.seq_len}; "
                "shorten the input or build the model with a larger seq_len"
            )
        # On an accelerator this check would wait for the device; there the lookup itself fails.
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            low, high = (int(end) for end in tokens.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                bad = low if low < 0 else high
                raise UserError(
                    f"token id {bad} is outside the model's vocabulary of {self.config.vocab_size}; "
                    "the tokens come from another tokenizer than the model's"
                )

    # ---- the parameters ----

    def init_weights(self, generator: torch.Generator, init: str | None = None) -> None:
        """Draw all weights, in place, from a CPU `generator`: the same numbers on any device and any sharding."""
        scheme = init or self.config.architecture.init
        initialise(self, self.parameter_roles(), self.config.n_layers, scheme, generator)

    def parameter_roles(self) -> dict[str, str]:
        """Parameter name -> role (see `danalab.models.init`)."""
        return {
            f"{prefix}.{name}" if prefix else name: "bias" if name == "bias" else cast(str, module.role)
            for prefix, module in self.named_modules()
            for name, _ in module.named_parameters(recurse=False)
        }

    def parameter_kinds(self) -> dict[str, str]:
        """Parameter name -> its kind (`danalab.optim.groups`), by which optimizers group."""
        return {name: KIND_OF_ROLE[role] for name, role in self.parameter_roles().items()}

    def num_parameters(self) -> int:
        """Number of weights, each counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def set_activation_checkpointing(self, mode: str) -> None:
        """Trade time for memory: "none", "full", "every-n:K" or "selective" (see `checkpointing_rule`)."""
        rule = checkpointing_rule(mode)
        for layer, block in enumerate(cast(Any, self.blocks)):
            block.checkpointing = rule(layer)


def materialise(model: Decoder, device: torch.device | str) -> Decoder:
    """Give a model on the meta device memory on `device`, in place, with undefined weights; returns it.

    As `Module.to_empty`, whose `empty_like` imports sympy. UserError: the device has less memory.
    """
    needed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    require_memory(needed, device, "the model")
    return model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device))


def require_memory(needed: int, device: torch.device | str, subject: str) -> None:
    """Check that `needed` bytes fit on a device at all; meta: in the memory of the host."""
    device = torch.device(device)
    limit = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else host_memory()
    if needed > limit:
        amount = f"{needed >> 30:,}" if needed < 1 << 100 else "more than 2^70"
        raise UserError(f"{subject} needs at least {amount} GiB of memory, but the device has {limit >> 30}")


_aten = torch.ops.aten
# Expensive to recompute, and small compared with the rest: matrix products and the output of attention.
_SAVED_OPS = [
    _aten.mm.default,
    torch.ops.danalab.grouped_linear.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]


class Block(nn.Module):
    """The block of index `layer`: norm, mixer (attention or its replacement), norm, MLP around a residual stream.

    Checkpointing is inside `forward`, so that a block may be compiled or sharded after it is set.
    """

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        self.attention_norm = make_norm(config, config.d_model)
        linear, architecture = config.linear_attention, config.architecture
        is_linear = linear is not None and layer in linear.layers
        module, _, name = (
            architecture.linear_mixer_class if is_linear else architecture.mixer_class
        ).partition(":")
        self.attention = getattr(import_module(module), name)(
            config
        )  # its name in checkpoints, whatever it is
        self.mlp_norm = make_norm(config, config.d_model)
        sparsity = config.sparsity
        has_experts = sparsity is not None and layer in sparsity.layers
        self.mlp = MixtureOfExperts(config) if has_experts else MLP(config, config.mlp_dim)
        self.residual_scale = config.residual_scale
        self.dropout = config.dropout
        self.checkpointing = "none"

    def forward(
        self,
        x_BLD: Tensor,
        rotary_L1P2: Tensor | None,
        state: State | None = None,
        starts_BL: Tensor | None = None,
    ) -> tuple[Tensor, Routing | None]:
        """[B, L, D], and with experts the sums that their router's losses need.

        These are returned, not stored: under compilation, sharding and checkpointing side effects may be lost or
        happen twice. For `rotary`, `state` and `starts` see `Attention.forward`.
        """
        if self.checkpointing == "none" or state is not None or not torch.is_grad_enabled():
            return self._compute(x_BLD, rotary_L1P2, state, starts_BL)
        settings: dict[str, Any] = {
            "use_reentrant": False,
            "preserve_rng_state": self.dropout > 0,
        }
        if self.checkpointing == "selective":
            settings["context_fn"] = partial(create_selective_checkpoint_contexts, _SAVED_OPS)
        return checkpoint(self._compute, x_BLD, rotary_L1P2, None, starts_BL, **settings)

    def _compute(
        self, x: Tensor, rotary: Tensor | None, state: State | None, starts: Tensor | None
    ) -> tuple[Tensor, Routing | None]:
        x = self._add(x, self.attention(self.attention_norm(x), rotary, state, starts))
        update, routing = self.mlp(self.mlp_norm(x)), None
        if isinstance(update, tuple):
            update, routing = update
        return self._add(x, update), routing

    def _add(self, x: Tensor, update: Tensor) -> Tensor:
        update = dropout(update, self.dropout, self.training)
        return x + update if self.residual_scale == 1.0 else x.add(update, alpha=self.residual_scale)
