from .config.run_spec import Resolved as Resolved
from .config.train_config import TrainConfig as TrainConfig
from .job import Outcome as Outcome
from .job import run_training as run_training
from .job import train as train
from .run.open import Run as Run
from .run.open import open_run as open_run
from .trainer import Trainer as Trainer
