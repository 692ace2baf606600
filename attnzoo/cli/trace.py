"""`attnzoo trace NAME`: every shape on the way through a layer."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from attnzoo import viz
from attnzoo.cli.given import build, tokens_in
from attnzoo.cli.screen import print_json, quiet_zoo

EXAMPLE = "Example: attnzoo trace gqa --d-model 64 --heads 8 --kv-heads 2 --seq 10"


def trace(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A variant, as `attnzoo list` names it.", show_default=False)],
    seq: Annotated[int | None, typer.Option(help="How many tokens to send through; 10 if neither is said.")] = None,
    batch: Annotated[int, typer.Option(help="How many sequences.")] = 2,
    text: Annotated[str, typer.Option(help="Send these words through, as random vectors, in place of --seq.")] = "",
    scale_lesson: Annotated[
        bool, typer.Option("--scale-lesson", help="Show also why the scale matters, as heads grow wider.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Where the random draws start.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Follow a forward pass: each shape by letter and by number, mean and spread, parameters, FLOPs, line of code.

    The variant's options can be given, as in --kv-heads 2; its first case gives what is missing.
    """
    with quiet_zoo() as zoo:
        layer, width = build(zoo, name, context.args, seed)
        x = tokens_in(width, seq, batch, text, seed)[0]
        followed = viz.trace(layer, x, name=name)
        lesson = viz.scale_lesson(seed=seed) if scale_lesson else None
    if json:
        return print_json({**followed.to_dict(), **({"scale_lesson": lesson.to_dict()} if lesson else {})})
    console = Console()
    console.print(followed)
    if lesson:
        console.print()
        console.print(lesson)
    return None
