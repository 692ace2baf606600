"""`attnzoo new NAME`: a whole plugin project to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from attnzoo.cli.screen import quiet_zoo
from attnzoo.cli.streams import writing
from attnzoo.errors import ConfigError
from attnzoo.registry import Registry

EXAMPLE = "Example: attnzoo new my-attention"

# The template is a project of this name; the name is the only thing that changes.
TEMPLATE = Path(__file__).parent / "template"
# Its files carry this ending, so that no tool takes them for ours.
ENDING = ".txt"


def new(
    name: Annotated[
        str, typer.Argument(help="What to call the project, such as my-attention.", metavar="NAME", show_default=False)
    ],
    into: Annotated[Path, typer.Option(help="The folder to write the project's folder in.", metavar="DIR")] = Path(),
) -> None:
    """Write a plugin project: a variant that conforms, its tests, and a README that says what to change next.

    Exits with 2, and writes nothing, for a name that does not do or a folder that already holds something.
    """
    with quiet_zoo() as zoo:
        module = module_named(name, zoo)
    target = into / name
    written = project(name, module)
    write(target, written)
    print(f"Written to {target}:")
    for path in sorted(written):
        print(f"  {path}")
    print("\nNext:")
    for command in (f"cd {target}", 'python -m pip install -e ".[test]"', f"attnzoo check {module}"):
        print(f"  {command}")


def module_named(name: str, zoo: Registry) -> str:
    """The module, and variant, of a project of this name.

    Raises `ConfigError`, with a name that would do, for one that cannot be a package, or is taken.
    """
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name.replace("_", "-")):
        rule = "lower case letters and digits, in words joined by -, starting with a letter"
        raise ConfigError(f"the name {name!r} must be {rule}; try {suggestion(name, zoo)}")
    if problem := unusable(module, zoo):
        raise ConfigError(f"the name {name!r} does not do: {problem}; try {suggestion(name, zoo)}")
    return module


def unusable(module: str, zoo: Registry) -> str:
    """Why a well-formed name cannot be that of a new module and variant, or nothing."""
    offers = [known for known in zoo if known.rpartition("/")[2] == module]
    if offers:
        return f"{zoo.origin(offers[0])} already offers a variant {module!r}"
    if keyword.iskeyword(module):
        return f"{module!r} is a word of the Python language, and no module can be called so"
    if module in sys.stdlib_module_names:
        return f"{module!r} is a module of Python's own, which yours would hide"
    if module == "tests":
        return "the project's own tests are called so"
    if importlib.util.find_spec(module) is not None:
        return f"a module {module!r} is already installed, which yours would hide"
    return ""


def suggestion(name: str, zoo: Registry) -> str:
    """A name near this one that does."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    near = "-".join(words)
    tries = [near, f"my-{near}", f"{near}-attention", "my-attention", *(f"my-attention-{n}" for n in range(2, 100))]
    good = (each for each in tries if re.match(r"[a-z]", each) and each[-1] != "-")
    return next(each for each in good if not unusable(each.replace("-", "_"), zoo))


def project(name: str, module: str) -> Mapping[str, str]:
    """The files of a new project: path -> text."""
    words = module.split("_")
    names = {
        "my-attention": name,
        "my_attention": module,
        "MyAttention": "".join(word.capitalize() for word in words),
        "My attention": " ".join(words).capitalize(),
    }
    pattern = re.compile("|".join(map(re.escape, names)))

    def named(text: str) -> str:
        return pattern.sub(lambda found: names[found.group()], text)

    texts = {path.relative_to(TEMPLATE): path.read_text(encoding="utf-8") for path in TEMPLATE.rglob(f"*{ENDING}")}
    return {named(path.as_posix().removesuffix(ENDING)): named(text) for path, text in texts.items()}


def write(target: Path, written: Mapping[str, str]) -> None:
    """Write all files, or none: they are written beside the target, which then takes their place in one step.

    Raises `ConfigError` where the target holds something, or cannot be written.
    """
    if not target.parent.is_dir():
        raise ConfigError(f"--into: {target.parent} is no folder; make it first: mkdir -p {target.parent}")
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"{target} already holds something; give another name, another --into, or empty it")
    if not target.is_dir() and target.exists():
        raise ConfigError(f"{target} is already a file; give another name, or another --into")
    with writing("--into", target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".attnzoo-new-") as beside:
        whole = Path(beside) / target.name
        for path, text in written.items():
            place = whole / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        if target.is_dir():
            target.rmdir()
        shutil.move(whole, target)
