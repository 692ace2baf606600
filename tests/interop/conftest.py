"""Real models, loaded once, each beside its swapped copy."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from attnzoo.interop.models import load_minilm, load_smollm2
from attnzoo.interop.transformers import swap


@dataclass(frozen=True)
class Pair:
    original: Any
    swapped: Any
    tokenizer: Any


@pytest.fixture(scope="session")
def smollm2() -> Pair:
    model, tokenizer = load_smollm2()
    return Pair(model, swap(copy.deepcopy(model)), tokenizer)


@pytest.fixture(scope="session")
def minilm() -> Pair:
    model, tokenizer = load_minilm()
    return Pair(model, swap(copy.deepcopy(model)), tokenizer)
