"""Peers of the benchmarks: llama.cpp for decoding, and a hand-written training loop for the trainer.

llama.cpp has the same float32 weights in a GGUF file. It needs the packages `llama-cpp-python`, which compiles it, and
`gguf`; the benchmark leaves it out without them.

`PlainModel` is the same function as our enoki (pre-norm, rotary positions, QK-norm, GELU, untied head), in plain
PyTorch: one fused projection for q, k and v, whole logits, torch's cross-entropy. `PlainLoop` trains it with torch's
fused AdamW, clipping, and random windows of a memory-mapped array of token ids. It uses nothing of ours.
"""

import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danalab.models import ModelConfig


class LlamaCpp:
    """Greedy decoding of batches, with weights, keys and values in float32, on as many threads as torch has."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        sequences: int,
        positions: int,
        flash_attention: bool = False,
    ):
        """Write the weights as a GGUF file, and load it.

        Args:
            config: of a Qwen3.
            weights: by their names in `transformers`.
            sequences: of a batch, at most.
            positions: of a sequence, at most.
            flash_attention: llama.cpp's default; it rounds to half precision, so that logits differ by some 1e-3.

        Raises:
            ImportError: a package is missing.
        """
        import llama_cpp

        self._lib: Any = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)  # kept: the library holds a bare pointer
        llama_cpp.llama_log_set(self._silence, None)
        self._vocab_size = config.vocab_size
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.gguf"
            _write(config, weights, file)
            settings = llama_cpp.llama_model_default_params()
            settings.use_mmap = False  # the file goes
            self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), settings)
        if not self._model:
            raise RuntimeError("llama.cpp does not load the model")
        size = llama_cpp.llama_context_default_params()
        size.n_ctx, size.n_seq_max = sequences * positions, sequences
        size.n_threads = size.n_threads_batch = torch.get_num_threads()
        size.flash_attn_type = int(flash_attention)
        size.type_k = size.type_v = llama_cpp.GGML_TYPE_F32
        self._context = llama_cpp.llama_init_from_model(self._model, size)
        self._batch = llama_cpp.llama_batch_init(2048, 0, 1)
        weakref.finalize(self, _free, llama_cpp, self._batch, self._context, self._model)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """`tokens` tokens after each prompt."""
        lib, generated = self._lib, [[] for _ in prompts]
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        inputs = [
            (token, place, number, place == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        for step in range(tokens):
            for tokens_of_one, token in zip(generated, self._decode(inputs, len(prompts)), strict=True):
                tokens_of_one.append(token)
            inputs = [
                (generated[number][-1], len(prompt) + step, number, True) for number, prompt in enumerate(prompts)
            ]
        return generated

    def _decode(self, inputs: Sequence[tuple[int, int, int, bool]], outputs: int) -> list[int]:
        """The most likely tokens after the inputs (token, position, sequence, whether its logits are needed)."""
        lib, batch = self._lib, self._batch
        batch.n_tokens = len(inputs)
        for i, (token, place, number, is_output) in enumerate(inputs):
            batch.token[i], batch.pos[i], batch.logits[i] = token, place, is_output
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, number
        if lib.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama.cpp does not decode the batch")
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self._context), (outputs, self._vocab_size))
        return logits.argmax(1).tolist()


def _free(lib: Any, batch: Any, context: Any, model: Any) -> None:
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    lib.llama_model_free(model)


def _write(config: ModelConfig, weights: Mapping[str, torch.Tensor], file: Path) -> None:
    """A GGUF file without a tokenizer."""
    import gguf

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.n_layers)
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.QWEN3])
    writer.add_context_length(config.seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.mlp_dim)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads or config.n_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    for name, tensor in weights.items():
        their_name = names.get_name(name, try_suffixes=(".weight",))
        assert their_name, name
        writer.add_tensor(their_name, tensor.detach().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class PlainBlock(nn.Module):
    """Attention and MLP."""

    def __init__(self, d_model: int, n_heads: int, mlp_dim: int):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model, bias=False), nn.LayerNorm(d_model, bias=False)
        self.q_norm, self.k_norm = nn.LayerNorm(self.head_dim, bias=False), nn.LayerNorm(self.head_dim, bias=False)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        self.up, self.down = nn.Linear(d_model, mlp_dim, bias=False), nn.Linear(mlp_dim, d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, L, D]; cos, sin [L, head_dim / 2]."""
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = _turn(self.q_norm(q), cos, sin), _turn(self.k_norm(k), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


class PlainModel(nn.Module):
    """The language model; returns the loss."""

    def __init__(self, d_model: int, n_layers: int, n_heads: int, mlp_dim: int, vocab_size: int, seq_len: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(PlainBlock(d_model, n_heads, mlp_dim) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model, bias=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        half = d_model // n_heads // 2
        angles = torch.arange(seq_len)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """tokens, targets [B, L] -> mean cross-entropy."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class PlainLoop:
    """Data, model and optimizer; `run(n)` makes n steps.

    `tokens` are ids, 1-D, memory-mapped or not; `dtype` is that of autocast, float32 for none.
    """

    def __init__(
        self,
        model: nn.Module,
        tokens: np.ndarray,
        *,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
        lr: float = 1e-3,
    ):
        self.model = model.to(device)
        self.tokens, self.batch_size, self.seq_len, self.device, self.dtype = tokens, batch_size, seq_len, device, dtype
        decayed = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), fused=True)
        self.random = np.random.default_rng(0)

    def batch(self) -> tuple[Tensor, Tensor]:
        starts = self.random.integers(len(self.tokens) - self.seq_len - 1, size=self.batch_size)
        rows = [torch.from_numpy(self.tokens[i : i + self.seq_len + 1].astype(np.int64)) for i in starts]
        whole = torch.stack(rows)
        if self.device.type == "cuda":
            whole = whole.pin_memory().to(self.device, non_blocking=True)
        return whole[:, :-1], whole[:, 1:]

    def run(self, steps: int) -> float:
        """Make `steps` steps; returns the last loss."""
        loss = torch.zeros(())
        for _ in range(steps):
            inputs, targets = self.batch()
            with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
                loss = self.model(inputs, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())
