from .app import create_app as create_app
from .serve import EngineSettings as EngineSettings
from .serve import bind as bind
from .serve import make_worker as make_worker
from .serve import serve as serve
from .settings import ServerSettings as ServerSettings
