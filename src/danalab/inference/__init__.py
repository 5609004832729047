"""Text from a model: an engine with continuous batching, sampling parameters, constraints, tokens to text."""

from danalab.inference.engine import Engine
from danalab.inference.generator import TextGenerator
from danalab.inference.json_constraint import JsonConstraint
from danalab.inference.request import Completion, Request, SamplingParameters, TextStream, TokenEvent

__all__ = [
    "Completion",
    "Engine",
    "JsonConstraint",
    "Request",
    "SamplingParameters",
    "TextGenerator",
    "TextStream",
    "TokenEvent",
]
