"""Text samples during training."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from danalab.data.tokenizers import Tokenizer, load_tokenizer
from danalab.errors import UserError
from danalab.inference import SamplingParameters, TextGenerator
from danalab.models.decoder import Decoder
from danalab.train.callbacks.base import CallbackContext, RowsCallback

log = logging.getLogger(__name__)

MAX_TOKENS, TEMPERATURE, SEED, MAX_BATCH = 64, 0.8, 0, 8


class TextSamples(RowsCallback):
    """Continues the same prompts at each evaluation; writes `samples.jsonl` and the log."""

    name = "samples"

    def __init__(self, file: Path, model: Decoder, tokenizer: Tokenizer, prompts: Sequence[str], *, compiled: bool):
        """Args:
            file: gets rows {"step": ..., "prompt": ..., "text": ...}.
            compiled: whether the model's blocks are compiled; samples are computed eagerly.
        Raises:
            UserError: a prompt fills the context.
        """
        super().__init__(file)
        self._model, self._tokenizer, self._prompts = model, tokenizer, prompts
        self._compiled = compiled
        for prompt in prompts:
            if len(tokenizer.encode(prompt)) >= model.config.seq_len:
                raise UserError(
                    f"--sample-prompts: '{prompt[:40]}...' fills the context of {model.config.seq_len} tokens"
                )

    @classmethod
    def build(cls, context: CallbackContext) -> "TextSamples | None":
        """On the first rank, which must hold the whole model."""
        spec, world = context.spec, context.strategy.world
        if world.layout.backend == "fsdp" or world.layout.expert_parallel:
            raise UserError("--sample-prompts: no rank has the whole model; sample the checkpoints by danalab generate")
        if not world.is_console_rank:
            return None
        assert isinstance(context.model, Decoder)
        try:
            tokenizer = load_tokenizer(context.folder / "tokenizer")
        except UserError as error:
            raise UserError(f"--sample-prompts: the run has no tokenizer: {error}") from error
        file, prompts = context.folder / "samples.jsonl", spec.tracking.sample_prompts
        return cls(file, context.model, tokenizer, prompts, compiled=spec.compile)

    def on_evaluated(self, step: int) -> None:
        """Sample. The random generators of training are not used."""
        model, training, document_token = self._model, self._model.training, self._model.document_token
        model.eval()
        model.document_token = None  # a cache holds one document
        try:
            with torch.compiler.set_stance("force_eager") if self._compiled else contextlib.nullcontext():
                # An engine of its own: it may copy the weights, which change, and its memory is free in between.
                generator = TextGenerator(model, self._tokenizer, max_batch_size=min(MAX_BATCH, len(self._prompts)))
                texts = generator.complete_all(self._prompts, list(map(self._parameters, self._prompts)))
            for prompt, continuation in zip(self._prompts, texts, strict=True):
                self.write({"step": step, "prompt": prompt, "text": continuation.text})
                log.info("step %d: %s|%s", step, prompt, " ".join(continuation.text.split()))
        finally:
            model.train(training)
            model.document_token = document_token

    def _parameters(self, prompt: str) -> SamplingParameters:
        room = self._model.config.seq_len - len(self._tokenizer.encode(prompt))
        max_tokens = max(1, min(MAX_TOKENS, room - 1))
        return SamplingParameters(max_tokens=max_tokens, temperature=TEMPERATURE, seed=SEED)
