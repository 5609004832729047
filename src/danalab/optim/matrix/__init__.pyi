from .manau import Manau as Manau
from .muon import DMuon as DMuon
from .muon import Muon as Muon
from .newton_schulz import orthogonalize as orthogonalize
