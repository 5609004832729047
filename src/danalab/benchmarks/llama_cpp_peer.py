"""llama.cpp as a peer of the decoding benchmark: the same float32 weights as a GGUF file, by llama-cpp-python.

Needs the packages `llama-cpp-python`, which compiles llama.cpp, and `gguf`; the benchmark leaves it out without them.
"""

import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
        lib, found = self._lib, [[] for _ in prompts]
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        inputs = [
            (token, place, number, place == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for place, token in enumerate(prompt)
        ]
        for step in range(tokens):
            for tokens_of_one, token in zip(found, self._decode(inputs, len(prompts)), strict=True):
                tokens_of_one.append(token)
            inputs = [(found[number][-1], len(prompt) + step, number, True) for number, prompt in enumerate(prompts)]
        return found

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
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.detach().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
