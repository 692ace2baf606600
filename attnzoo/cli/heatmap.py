"""`attnzoo heatmap`: who attends to whom, as a picture or a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from attnzoo import viz
from attnzoo.cli.screen import quiet_zoo
from attnzoo.cli.trace import build, tokens_in
from attnzoo.errors import ConfigError, did_you_mean
from attnzoo.interop import models
from attnzoo.viz.figure import require_matplotlib

EXAMPLE = 'Example: attnzoo heatmap gqa --text "The cat sat on the mat." --out cat.png'

ENDINGS = (".png", ".svg", ".html")
MODELS = {"smollm2": models.load_smollm2, "minilm": models.load_minilm}

# A fresh layer's weights are small: with tokens of unit spread softmax would be flat, and there would be nothing to see.
SPREAD = 2.5


def heatmap(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A variant, as `attnzoo list` names it.", show_default=False)] = None,
    model: Annotated[str, typer.Option(help="A real model in place of a variant: smollm2 or minilm.")] = "",
    text: Annotated[str, typer.Option(help="What is read.")] = "",
    seq: Annotated[int | None, typer.Option(help="How many unnamed tokens to draw in place of a text.")] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Draw who may see whom, by the variant's rules.")] = False,
    layer: Annotated[int | None, typer.Option(help="Only this layer of a model, from 0.")] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, from 0.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write; the ending decides: .png, .svg, .html.")] = Path("heatmap.png"),
    seed: Annotated[int, typer.Option(help="Where the random draws start.")] = 0,
) -> None:
    """Draw attention: queries down the side, keys along the top; or, as .html, a page to explore it.

    A variant is built with random weights, from any of its options, as in --kv-heads 2, or from its first case.
    """
    check(name, model, text, mask, out, context.args)
    with quiet_zoo() as zoo, Progress(*COLUMNS, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=3)

        def begin(what: str) -> None:
            progress.update(bar, description=what, completed=begin.steps)  # type: ignore[attr-defined]
            begin.steps += 1  # type: ignore[attr-defined]

        if model:
            begin(f"load {model}")
            reader, tokenizer = MODELS[model]()
            begin("read the text")
            seen = viz.maps(reader, text, tokenizer=tokenizer, name=f"{model}: {text}")
        else:
            begin(f"build {name}")
            built, width = build(zoo, str(name), context.args, seed)
            x, tokens = tokens_in(width, seq, 1, text, seed, SPREAD)
            begin("attend")
            seen = viz.maps(built, x, queries=tokens, name=f"{name}, untrained")
        begin("draw")
        write(out, seen)
COLUMNS = 1
