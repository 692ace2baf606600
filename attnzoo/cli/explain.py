"""`attnzoo explain NAME`: which kernel runs, why the others do not, and what a call costs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import typer

from attnzoo.cli.given import build, tokens_in
from attnzoo.cli.screen import print_json, print_table, quiet_zoo
from attnzoo.errors import ConfigError, Unsupported

EXAMPLE = "Example: attnzoo explain sliding_window --window 256 --seq 4096 --train"


def explain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A variant, as `attnzoo list` names it.", show_default=False)],
    seq: Annotated[int, typer.Option(help="How many tokens to send through.")] = 1024,
    past: Annotated[int, typer.Option(help="How many tokens are cached before these.")] = 0,
    batch: Annotated[int, typer.Option(help="How many sequences.")] = 1,
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16", "float16"], typer.Option(help="The type of layer and tokens.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="Where to run it: cpu, cuda, cuda:1.")] = "cpu",
    train: Annotated[bool, typer.Option("--train", help="In training, where a backward pass follows.")] = False,
    need_weights: Annotated[bool, typer.Option("--need-weights", help="With the weights asked for.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Explain a call: the backend that runs, why each other one does not, the scale, the keys a query sees, the FLOPs,
    what is kept for the backward pass, and how both grow. The call is really made, and once more at half its length.

    The variant's options can be given, as in --kv-heads 2; its first case gives what is missing.
    """
    if past < 0 or (train and past):
        raise ConfigError(f"--past ({past}) counts cached tokens, 0 or more, and goes without --train")
    with quiet_zoo() as zoo:
        layer, width = build(zoo, name, context.args, seed=0)
        explain_call: Any = getattr(layer, "explain", None)
        if explain_call is None:
            raise Unsupported(f"{name} cannot be explained: it is no ops.AttentionLayer, which knows its kernels")
        try:
            layer = layer.to(device=device, dtype=getattr(torch, dtype)).train(train)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"--device {device} cannot be used here: {str(error).splitlines()[0]}") from error
        x = tokens_in(width, past + seq, batch, "", 0)[0].to(device=device, dtype=getattr(torch, dtype))
        with torch.set_grad_enabled(train):
            explained = explain_call(x, past=past, need_weights=need_weights)
    if json:
        return print_json({"variant": name, "seq": seq, "past": past, "dtype": dtype, **explained.to_dict()})
    cached = f" on {past} cached" if past else ""
    print(f"{name}: {batch} x {seq} tokens{cached}, {dtype} on {device}, {'training' if train else 'no gradient'}")
    print_table(["", ""], [*explained.rows()])
    return None
