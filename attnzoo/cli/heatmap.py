"""`attnzoo heatmap`: who attends to whom, as a picture or as a page."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from torch import Tensor

from attnzoo import viz
from attnzoo.cli.given import build, tokens_in
from attnzoo.cli.screen import progress, quiet_zoo
from attnzoo.cli.streams import writing
from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.interop import models
from attnzoo.registry import Registry
from attnzoo.viz.colours import require_matplotlib

EXAMPLE = 'Example: attnzoo heatmap gqa --text "The cat sat on the mat." --out cat.png'

ENDINGS = (".png", ".svg", ".html")
MODELS = {"smollm2": models.load_smollm2, "minilm": models.load_minilm}
SPREAD = 2.5  # of the tokens: a fresh layer's weights are small, and softmax would be flat with less


def heatmap(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="A variant, as `attnzoo list` names it.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option(help="A real model in place of a variant: smollm2 or minilm.")] = "",
    text: Annotated[str, typer.Option(help="What it reads.")] = "",
    seq: Annotated[int | None, typer.Option(help="How many tokens, in place of a text; 10 if neither is said.")] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Draw who may see whom, in place of the weights.")] = False,
    document: Annotated[
        str, typer.Option(help="Which document each token belongs to, for packed sequences: 0,0,0,1,1.")
    ] = "",
    layer: Annotated[int | None, typer.Option(help="Only this layer of a model, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, from 0.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write; its ending decides what: .png, .svg or .html.")] = Path(
        "heatmap.png"
    ),
    seed: Annotated[int, typer.Option(help="Where the random draws start.")] = 0,
) -> None:
    """Draw attention: queries down the side, keys along the top; or, as .html, a page to explore it in.

    A variant gets random weights. Its options can be given, as in --kv-heads 2; its first case gives what is missing.
    """
    check_output(out, mask)
    if (name is None) == (not model):
        raise ConfigError(f"name a variant to draw, or a model with --model {' or '.join(MODELS)}")
    with quiet_zoo() as zoo, steps(total=3) as begin:
        if name is None:
            if seq is not None or document or context.args:
                surplus = "--seq" if seq is not None else "--document" if document else " ".join(context.args)
                raise ConfigError(f"{surplus} does not go with --model, which reads a --text as it is")
            seen = read(model, text, begin)
        else:
            seen = attend(zoo, name, context.args, seq, text, document, seed, begin)
        seen = seen.only(layer, head)
        begin(f"draw {out}")
        save(seen, out, mask)
    print(f"wrote {out} ({out.stat().st_size / 1000:,.0f} kB)")


def check_output(out: Path, mask: bool) -> None:
    """Before any work is done. Raises `ConfigError` for an ending that is not known."""
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--out {out}: the ending must be {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if mask and out.suffix.lower() == ".html":
        raise ConfigError(f"--mask is drawn as .png or .svg; try --out {out.with_suffix('.png')}")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    if out.suffix.lower() != ".html":
        require_matplotlib()


def read(model: str, text: str, begin: Callable[[str], None]) -> viz.Maps:
    """What a real model attends to in a text."""
    if model not in MODELS:
        raise ConfigError(f"unknown model {model!r}; it takes {', '.join(MODELS)}{did_you_mean(model, MODELS)}")
    if not text:
        raise ConfigError(f'--model {model} needs something to read: --text "The cat sat on the mat."')
    begin(f"load {model}")
    reader, tokenizer = MODELS[model]()
    begin("read the text")
    return viz.maps(reader, text, tokenizer=tokenizer, name=model)


def attend(
    zoo: Registry,
    name: str,
    options: Sequence[str],
    seq: int | None,
    text: str,
    document: str,
    seed: int,
    begin: Callable[[str], None],
) -> viz.Maps:
    """What a variant with random weights attends to."""
    begin(f"build {name}")
    layer, width = build(zoo, name, options, seed)
    ids = documents(document)
    if ids is not None and seq is None and not text:
        seq = ids.shape[1]
    x, tokens = tokens_in(width, seq, 1, text, seed, SPREAD)
    begin("attend")
    return viz.maps(layer, x, document=ids, queries=tokens, name=f"{name}, untrained")


def documents(text: str) -> Tensor | None:
    """
    >>> documents("0,0,1")
    tensor([[0, 0, 1]])
    """
    try:
        return torch.tensor([[int(number) for number in text.split(",")]]) if text else None
    except ValueError:
        raise ConfigError(f"--document {text}: give a whole number for each token, as in 0,0,0,1,1") from None


def save(seen: viz.Maps, out: Path, mask: bool) -> None:
    """As the ending says."""
    with writing("--out", out):
        if out.suffix.lower() == ".html":
            out.write_text(viz.page(seen), encoding="utf-8")
        else:
            (viz.mask if mask else viz.heatmap)(seen).savefig(out, dpi=150)


@contextmanager
def steps(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr; what it gives is called with the name of each step as it begins."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with progress(*columns) as bar:
        task, begun = bar.add_task("", total=total), itertools.count()
        yield lambda what: bar.update(task, description=what, completed=next(begun))
