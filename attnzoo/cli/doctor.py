"""`attnzoo doctor`: is this installation sound, and if not, which plugin is to blame."""

from __future__ import annotations

import os
import platform
from typing import Annotated, Any

import torch
import typer

import attnzoo
from attnzoo.cli.screen import print_json, print_table, quiet_zoo
from attnzoo.errors import AttnZooError
from attnzoo.loading import Plugin
from attnzoo.registry import Registry


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Examine this installation: versions, devices, every plugin, and one trial build of every variant.

    Exits with 1 if anything is wrong.
    """
    with quiet_zoo() as zoo:
        findings = examine(zoo)
    if json:
        print_json(findings)
    else:
        tell(findings)
    raise typer.Exit(0 if findings["ok"] else 1)


def examine(zoo: Registry) -> dict[str, Any]:
    """All that doctor has to say, as data."""
    limit = os.environ.get("ATTNZOO_PLUGINS", "")
    plugins = [
        {
            "plugin": plugin.key,
            "version": plugin.version,
            "status": "failed" if plugin.problem else "loaded",
            "variants": list(plugin.variants),
            "problems": [plugin.problem] if plugin.problem else failed_builds(zoo, plugin),
        }
        for plugin in zoo.plugins
    ]
    return {
        "ok": bool(plugins or limit) and not any(plugin["problems"] for plugin in plugins),
        "attnzoo": attnzoo.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "devices": devices(),
        "ATTNZOO_PLUGINS": limit,
        "plugins": plugins,
        "ambiguous": dict(zoo.ambiguous()),
    }


def failed_builds(zoo: Registry, plugin: Plugin) -> list[str]:
    """Build each variant of a plugin once, by its first case; the words of those that failed."""
    failed = []
    for name, variant in plugin.variants.items():
        try:
            zoo.build(f"{plugin.origin}/{name}", **variant.cases[0])
        except AttnZooError as error:
            failed.append(str(error))
    return failed


def devices() -> list[str]:
    """The devices that torch can use here."""
    cuda = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def tell(findings: dict[str, Any]) -> None:
    limit, plugins = findings["ATTNZOO_PLUGINS"], findings["plugins"]
    print(f"attnzoo {findings['attnzoo']}, Python {findings['python']}, torch {findings['torch']}")
    print(f"devices: {', '.join(findings['devices'])}")
    print(f"ATTNZOO_PLUGINS={limit} limits what is loaded" if limit else "ATTNZOO_PLUGINS is not set: all are loaded")
    if plugins:
        print_table(
            ["plugin", "version", "status", "variants and problems"],
            [
                (plugin["plugin"], plugin["version"], plugin["status"], "\n".join(variants_and_problems(plugin)))
                for plugin in plugins
            ],
        )
    for name, choices in findings["ambiguous"].items():
        print(f"note: {name!r} is offered by several distributions; ask for {' or '.join(choices)}")
    sick = [plugin["plugin"] for plugin in plugins if plugin["problems"]]
    if sick:
        print(f"Something is wrong with {', '.join(sick)}. A broken plugin costs only itself.")
    elif findings["ok"]:
        print(f"All is well: each of {sum(len(plugin['variants']) for plugin in plugins)} variants was built once.")
    else:
        print("Something is wrong: no plugin is installed, not even those of attnzoo. Install attnzoo with pip.")


def variants_and_problems(plugin: dict[str, Any]) -> list[str]:
    return [*([", ".join(plugin["variants"])] if plugin["variants"] else []), *plugin["problems"]]
