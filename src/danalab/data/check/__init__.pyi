from danalab.data.layout import Finding as Finding
from danalab.data.layout import Validation as Validation
from danalab_annexes.data.check import validate as validate
