"""`attnzoo list`: the installed variants, what they can do, and who provides them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from attnzoo.cli.screen import print_json, print_table, quiet_zoo
from attnzoo.variant import Traits


def list_(json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """List the installed variants: what they are, what they can do, and who provides them."""
    with quiet_zoo() as zoo:
        found = [(name, zoo[name], zoo.provider(name)) for name in zoo.names()]
    if json:
        return print_json(
            [
                {
                    "name": name,
                    "summary": variant.summary,
                    "provider": plugin.origin,
                    "version": plugin.version,
                    "paper": variant.paper,
                    "traits": asdict(variant.traits),
                }
                for name, variant, plugin in found
            ]
        )
    if found:
        print_table(
            ["name", "what it is", "traits", "provider"],
            [
                (
                    name,
                    f"{variant.summary}\n{variant.paper}",
                    traits_in_short(variant.traits),
                    str(plugin),
                )
                for name, variant, plugin in found
            ],
        )
    else:
        print("No variant is installed.")
    if zoo.failures:
        print(f"Not loaded: {', '.join(zoo.failures)}. `attnzoo doctor` tells why.")
    return None


def traits_in_short(traits: Traits) -> str:
    """The traits that a reader chooses by.

    >>> print(traits_in_short(Traits(cross=True)))
    causal: optional
    cache: none
    cross: yes
    positions: none
    """
    cross = "yes" if traits.cross else "no"
    return f"causal: {traits.causal}\ncache: {traits.cache}\ncross: {cross}\npositions: {traits.positions}"
