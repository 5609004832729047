from .ema_nesterov import EMANesterov as EMANesterov
from .snoo import SNOO as SNOO
from .soda import SODA as SODA
