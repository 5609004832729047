from danalab.data.layout import Finding as Finding
from danalab.data.layout import Validation as Validation
from danalab.data.validation import validate as validate
