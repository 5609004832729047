from .adam_mini import AdamMini as AdamMini
from .dion2 import Dion2 as Dion2
from .hyperball import AdamH as AdamH
from .hyperball import MuonH as MuonH
from .kl_soap import KLSOAP as KLSOAP
from .kron import Kron as Kron
from .scion import Scion as Scion
