from .saver import Retention as Retention
from .saver import Saver as Saver
from .store import CheckpointStore as CheckpointStore
from .store import DamagedCheckpointError as DamagedCheckpointError
from .store import verify as verify
