from .layouts import Finding as Finding
from .layouts import Layout as Layout
from .manifest import Manifest as Manifest
from .shards import Shard as Shard
from .store import TokenStore as TokenStore
