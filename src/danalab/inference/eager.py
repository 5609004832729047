"""The eager back end: the model's own layers, with keys and values in blocks. Runs every model on every device.

Sequences that add one token are computed as one batch, pieces of prompts one by one. Attention gathers the blocks of
its sequences. Recurrent states belong to the sequences, and are joined for a batch: their size is constant.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from danalab.inference.request import RequestState
from danalab.inference.scheduler import BlockPool, Chunk
from danalab.models.cache import Cache, KeyValues, continuation_mask
from danalab.models.decoder import Decoder


class EagerBackend:
    """Logits by the model's layers. `pool` is None where the model has no attention."""

    def __init__(self, model: Decoder, pool: BlockPool | None):
        self._model = model
        self.sampler = None
        self.reuses = pool is not None and not model.config.linear_attention
        self._memory = [
            KeyValueBlocks(pool) if pool is not None else None for _ in range(model.config.n_layers)
        ]

    @torch.no_grad()
    def run(self, chunks: Sequence[Chunk]) -> tuple[Tensor, list[RequestState]]:
        """Compute the chunks; returns logits [N, V] and the sequences whose next token they give."""
        single = [chunk for chunk in chunks if chunk.length == 1 and chunk.sequence.computed]
        groups = [[chunk] for chunk in chunks if chunk.length > 1 or not chunk.sequence.computed]
        hidden, sequences = [], []
        for group in [*groups, *([single] if single else [])]:
            last = self._hidden(group)
            ends = [row for row, chunk in enumerate(group) if chunk.sequence.pending == chunk.length]
            hidden.append(last if len(ends) == len(group) else last[ends])
            sequences += [group[row].sequence for row in ends]
        return F.linear(torch.cat(hidden), self._model.head_weight), sequences

    def _hidden(self, chunks: Sequence[Chunk]) -> Tensor:
        """Input of the head after the last token of each chunk, [N, D]; all chunks have the same length."""
        sequences, length = [chunk.sequence for chunk in chunks], chunks[0].length
        rows = [each.tokens[each.computed : each.computed + length] for each in sequences]
        cache = BlockCache(self._model, sequences, self._memory)
        hidden = self._model.hidden(torch.tensor(rows, device=self._model.head_weight.device), cache=cache)
        cache.store(sequences)
        return hidden[:, -1]

    def reload(self) -> None:
        """Nothing to do: the model's weights are used where they are."""


class BlockCache(Cache):
    """A batch of sequences of different lengths, for `Decoder.hidden`."""

    def __init__(
        self, model: Decoder, sequences: Sequence[RequestState], memory: Sequence[KeyValueBlocks | None]
    ):
        super().__init__(model.new_cache().states)
        device, starts = model.head_weight.device, [each.computed for each in sequences]
        self.starts = torch.tensor(starts, device=device).unsqueeze(1)
        self.length = self.max_start = max(starts)
        """Tokens of the longest sequence before the new ones."""
        self.same_start = min(starts) == self.max_start
        """Whether all sequences have as many."""
        size = next((each.block_size for each in memory if each is not None), 1)
        width = max(len(each.blocks) for each in sequences)
        table = [each.blocks + [0] * (width - len(each.blocks)) for each in sequences]
        inside = torch.arange(size, device=device)
        self.table = (torch.tensor(table, device=device).unsqueeze(-1) * size + inside).flatten(1)
        """Places of positions in the memory of all blocks, [B, positions]; the same for all layers."""
        for layer, state in enumerate(self.states):
            blocks = memory[layer]
            if isinstance(state, KeyValues):
                assert blocks is not None
                blocks.cache, self.states[layer] = self, blocks
            elif begun := [each.states[layer] for each in sequences if each.states and each.states[layer]]:
                # All sequences of a batch are before their first token, or all are after it.
                state.load(tuple(torch.cat(same) for same in zip(*begun, strict=True)))

    def positions(self, length: int, device: torch.device) -> Tensor | None:
        """[B, L]; None where all sequences have the same length."""
        return None if self.same_start else self.starts + torch.arange(length, device=device)

    def store(self, sequences: Sequence[RequestState]) -> None:
        """Give each sequence its part of the recurrent states."""
        recurrent = [None if isinstance(state, KeyValues) else state.tensors() for state in self.states]
        if any(recurrent):
            for row, sequence in enumerate(sequences):
                sequence.states = [part and tuple(x[row : row + 1] for x in part) for part in recurrent]


class KeyValueBlocks(KeyValues):
    """Keys and values of one layer in the memory of all blocks, [positions, K, H]; `cache`: the sequences of a step."""

    def __init__(self, pool: BlockPool):
        super().__init__(pool.n_blocks * pool.block_size)
        self.block_size = pool.block_size
        self.cache: BlockCache

    def append(self, k_BNLH: Tensor, v_BNLH: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values of all positions up to the new ones, and the mask that shorter sequences need."""
        length, device, cache = k_BNLH.shape[2], k_BNLH.device, self.cache
        end = cache.max_start + length
        if cache.same_start:
            new, visible = cache.table[:, cache.max_start : end], cache.table[:, :end]
            mask = continuation_mask(cache.max_start, length, device)
        else:
            own, every = cache.starts + torch.arange(length, device=device), torch.arange(end, device=device)
            new = cache.table.gather(1, own)
            # Beyond its end a sequence sees its last token again, never what others left: 0 times NaN would be NaN.
            visible = cache.table.gather(1, every.minimum(own[:, -1:]))
            mask = (every <= own.unsqueeze(-1)).unsqueeze(1)
        k, v = k_BNLH.transpose(1, 2), v_BNLH.transpose(1, 2)
        if self._keys is None or self._values is None:
            self._keys, self._values = (x.new_empty(self.max_len, *x.shape[-2:]) for x in (k, v))
        self._keys[new], self._values[new] = k, v
        return self._keys[visible].transpose(1, 2), self._values[visible].transpose(1, 2), mask
