"""A mixture of tasks as the data set of a run: what plans and records ask of it."""

import hashlib
from pathlib import Path
from typing import NoReturn

import numpy as np

from danalab.chat.conversations import ChatFormat
from danalab.chat.tasks import Task, TaskMixture, make_task
from danalab.data import Dataset
from danalab.data.formats.shards import TokenStore
from danalab.errors import UserError

HASHED = 10_000
"""Problems of a task that its fingerprint covers, evenly spaced."""


class TaskDataset(Dataset):
    """Problems of tasks; `n_tokens` counts the positions of one pass over all problems, as if every row were full."""

    def __init__(self, specifications: tuple[str, ...], chat: ChatFormat, *, seed: int, row_tokens: int, reward: str):
        """Args:
            specifications: NAME[:KEY=VALUE,...] of each task.
            seed: of the order of the problems.
            row_tokens: positions of the answers to one problem.
            reward: of all problems, or empty; a file counts by its content.

        Raises:
            UserError: no task, an unknown one, or malformed data.
        """
        made = [make_task(text) for text in specifications]
        if not made:
            raise UserError("no task: give --task arithmetic, a FILE.jsonl, or another; docs/rl.md lists them")
        self.tasks = [task for task, _ in made]
        self.mixture = TaskMixture(self.tasks, [weight for _, weight in made], seed=seed)
        self.chat, self.specifications = chat, specifications
        name = ", ".join(specifications)
        identity = hashlib.sha256(f"tasks 1\n{chat.tokenizer.fingerprint}\n{_of_reward(reward)}".encode())
        for (task, weight), text in zip(made, specifications, strict=True):
            identity.update(f"{text.partition(':')[0]}\n{weight}\n{_hash_of(task)}\n".encode())
        super().__init__(
            Path(name),
            "train",
            TokenStore([], name),
            vocab_size=chat.tokenizer.vocab_size,
            eos_id=chat.bos,
            fingerprint=identity.hexdigest(),
            max_ids=[chat.n_ids - 1],
            tokenizer_name=chat.tokenizer.name,
            open_split=self._no_split,
        )
        self.tokenizer = chat.tokenizer
        self.n_tokens = sum(map(len, self.tasks)) * row_tokens

    @property
    def location(self) -> str:
        """See `Dataset.location`: the words that were given."""
        return str(self.path)

    @property
    def size(self) -> str:
        """See `Dataset.size`."""
        return f"{sum(map(len, self.tasks)):,} problems"

    @property
    def least_vocab_size(self) -> int:
        """See `Dataset.least_vocab_size`."""
        return self.chat.n_ids

    def check_vocab(self, vocab_size: int) -> None:
        """See `Dataset.check_vocab`."""
        if self.chat.n_ids > vocab_size:
            raise UserError(
                f"{self.path}: its special tokens need a vocabulary of {self.chat.n_ids}, the model has {vocab_size}"
            )

    def _no_split(self, split: str) -> NoReturn:
        raise UserError(f"{self.path}: tasks have no split '{split}'; give split=... to a task")


def _hash_of(task: Task) -> str:
    digest = hashlib.sha256(f"{task.name} {len(task)}".encode())
    positions = np.unique(np.linspace(0, len(task) - 1, min(len(task), HASHED)).astype(np.int64))
    if len(task) > HASHED:
        positions = positions[:: len(positions) // 100]  # generated: a sample tells the settings
    for position in positions.tolist():
        digest.update(repr(task.problem(position)).encode(errors="backslashreplace"))
    return digest.hexdigest()


def _of_reward(reward: str) -> str:
    file = Path(reward.rpartition(":")[0] if ".py:" in reward else reward)
    if reward and file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest() + reward.rpartition(":")[2]
    return reward
