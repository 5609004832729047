from .download import plan_download as plan_download
from .pipeline import prepare as prepare
