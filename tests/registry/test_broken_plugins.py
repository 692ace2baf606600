"""Many broken distributions in one environment: none stops the others, and each is named with what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GOOD = """
    import attnzoo
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, d_model=24): super().__init__()

    def variant(name, build=Layer):
        return attnzoo.Variant(name=name, build=build, summary="A stand-in.", cases=[{"d_model": 24}])
"""

# distribution -> what its module says after GOOD
MODULES = {
    "syntax-error": "def",
    "import-error": "import not_there",
    "import-deep": "import importlib; importlib.import_module('not_there')",
    "bad-name": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant("Capital")]
    """,
    "exits": "raise SystemExit(3)",
    "talks": "print('hello from a chatty plugin')",
    "misspelt-marked": """
    @attnzoo.hookimpl
    def attnzoo_variant(): return [variant("lost")]
    """,
    "misspelt-unmarked": "def attnzoo_varaints(): return [variant('lost')]",
    "other-name": """
    @attnzoo.hookimpl
    def variants(): return [variant("lost")]
    """,
    "unmarked": "def attnzoo_variants(): return [variant('lost')]",
    "extra-argument": """
    @attnzoo.hookimpl
    def attnzoo_variants(config): return [variant("lost")]
    """,
    "twin-one": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant("shared"), variant("only_one")]
    """,
    "twin-two": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant("shared"), variant("only_two")]
    """,
    "returns-none": """
    @attnzoo.hookimpl
    def attnzoo_variants(): [variant("lost")]
    """,
    "returns-dict": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return {"lost": variant("lost")}
    """,
    "returns-bare": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return variant("lost")
    """,
    "returns-class": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant("lost"), Layer]
    """,
    "twice-inside": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant("fine"), variant("double"), variant("double")]
    """,
    "hook-raises": """
    @attnzoo.hookimpl
    def attnzoo_variants(): raise KeyError("gone")
    """,
    "hook-exits": """
    @attnzoo.hookimpl
    def attnzoo_variants(): raise SystemExit("enough")
    """,
    "asks-the-zoo": """
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant(name) for name in attnzoo.variants()]
    """,
    "bad-factory": """
    def explode(d_model): return {}[d_model]
    def give_dict(d_model): return {}
    @attnzoo.hookimpl
    def attnzoo_variants(): return [variant("explodes", explode), variant("gives_dict", give_dict)]
    """,
}

SCRIPT = """
import contextlib, io, json
import attnzoo
from attnzoo.cli import main
from attnzoo.registry import zoo

def words(name, **options):
    try:
        return type(attnzoo.build(name, **options)).__name__
    except attnzoo.errors.AttnZooError as error:
        return f"{type(error).__name__}: {error}"

def command(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main(arguments)
        except SystemExit as stop:
            return {"code": stop.code, "out": out.getvalue()}

print(json.dumps({
    "mha": words("mha", d_model=24, heads=4),
    "names": attnzoo.variants(),
    "failures": dict(zoo().failures),
    "shared": words("shared"),
    "twin-two/shared": words("twin-two/shared"),
    "lost": words("lost"),
    "explodes": words("explodes", d_model=24),
    "gives_dict": words("gives_dict", d_model=24),
    "list": command("list", "--json"),
    "doctor": command("doctor"),
    "doctor --json": command("doctor", "--json"),
}))
"""


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory, install: Callable[[Path, str, str], None]) -> dict[str, Any]:
    """What a Python with all of these distributions beside attnzoo answers."""
    folder = tmp_path_factory.mktemp("broken")
    for name, code in MODULES.items():
        install(folder, name, textwrap.dedent(GOOD) + textwrap.dedent(code))
    environment = {key: value for key, value in os.environ.items() if key != "ATTNZOO_PLUGINS"}
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, "PYTHONPATH": path, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


PROBLEMS = {
    "syntax-error": "import failed: SyntaxError: invalid syntax (syntax_error.py, line 10)",
    "import-error": "import failed: ModuleNotFoundError: No module named 'not_there' (import_error.py, line ",
    "import-deep": "import failed: ModuleNotFoundError: No module named 'not_there' (import_deep.py, line ",
    "bad-name": "digits and underscores, starting with a letter (bad_name.py, line ",
    "exits": "import failed: SystemExit: 3 (exits.py, line ",
    "talks": "no hook: it defines no attnzoo_variants under @attnzoo.hookimpl",
    "misspelt-marked": "there is no hook 'attnzoo_variant'; did you mean 'attnzoo_variants'?",
    "misspelt-unmarked": "there is no hook 'attnzoo_varaints'; did you mean 'attnzoo_variants'?",
    "other-name": "there is no hook 'variants'; did you mean 'attnzoo_variants'?",
    "unmarked": "attnzoo_variants lacks its mark; write @attnzoo.hookimpl above it",
    "extra-argument": "attnzoo_variants is called without arguments, but is defined as attnzoo_variants(config)",
    "returns-none": "attnzoo_variants must return a list of attnzoo.Variant; it returned None",
    "returns-dict": "attnzoo_variants must return a list of attnzoo.Variant; it returned a dict",
    "returns-bare": "attnzoo_variants must return a list of attnzoo.Variant; it returned a Variant",
    "returns-class": "attnzoo_variants must return a list of attnzoo.Variant; item 1 is a type: <class",
    "twice-inside": "attnzoo_variants returned 'double' more than once",
    "hook-raises": "attnzoo_variants raised KeyError: 'gone' (hook_raises.py, line ",
    "hook-exits": "attnzoo_variants raised SystemExit: enough (hook_exits.py, line ",
    "asks-the-zoo": "while it is being loaded; return variants from the hook (asks_the_zoo.py, line ",
}


def test_the_builtins_are_built_in_spite_of_all(seen: dict[str, Any]) -> None:
    assert seen["mha"] == "CausalMultiHeadAttention"


@pytest.mark.parametrize("distribution", PROBLEMS)
def test_a_broken_plugin_is_told_with_its_fault(seen: dict[str, Any], distribution: str) -> None:
    told = seen["failures"][f"{distribution}:plugin"]
    assert PROBLEMS[distribution] in told
    assert told.count(", line ") == PROBLEMS[distribution].count(", line ")


def test_only_the_broken_ones_are_failures(seen: dict[str, Any]) -> None:
    assert set(seen["failures"]) == {f"{distribution}:plugin" for distribution in PROBLEMS}


def test_a_refused_plugin_registers_nothing_half_way(seen: dict[str, Any]) -> None:
    assert not {"lost", "fine", "double"} & set(seen["names"])


def test_two_distributions_with_one_entry_point_name_both_load(seen: dict[str, Any]) -> None:
    assert {"only_one", "only_two"} <= set(seen["names"])


def test_a_name_of_two_distributions_is_ambiguous_bare_and_clear_qualified(seen: dict[str, Any]) -> None:
    assert {"twin-one/shared", "twin-two/shared"} <= set(seen["names"])
    assert "shared" not in seen["names"]
    assert seen["shared"].startswith("AmbiguousVariant: ")
    assert "'twin-one/shared' or 'twin-two/shared'" in seen["shared"]
    assert seen["twin-two/shared"] == "Layer"


def test_an_unknown_name_mentions_the_plugins_that_might_have_had_it(seen: dict[str, Any]) -> None:
    assert seen["lost"].startswith("UnknownVariant: unknown variant 'lost'")
    assert "misspelt-marked:plugin" in seen["lost"]
    assert "`attnzoo doctor`" in seen["lost"]


def test_a_factory_that_fails_is_named(seen: dict[str, Any]) -> None:
    assert seen["explodes"].startswith(
        "ConfigError: bad-factory/explodes: its factory raised KeyError: 24 (bad_factory.py"
    )
    assert seen["gives_dict"] == (
        "ConfigError: bad-factory/gives_dict: its factory must return a torch.nn.Module; it returned a dict"
    )


@pytest.mark.parametrize("distribution", [*PROBLEMS, "bad-factory"])
def test_doctor_names_each_broken_plugin_and_exits_with_1(seen: dict[str, Any], distribution: str) -> None:
    assert seen["doctor"]["code"] == 1
    assert f"{distribution}:plugin" in seen["doctor"]["out"].replace("\n", " ").split("Something is wrong with ")[1]


def test_doctor_tells_programs_what_is_wrong_with_each(seen: dict[str, Any]) -> None:
    findings = json.loads(seen["doctor --json"]["out"])
    told = {plugin["plugin"]: plugin for plugin in findings["plugins"]}
    assert findings["ok"] is False
    assert seen["doctor --json"]["code"] == 1
    for distribution, problem in PROBLEMS.items():
        plugin = told[f"{distribution}:plugin"]
        assert plugin["status"] == "failed"
        assert problem in plugin["problems"][0]
        assert plugin["version"] == "1.5"
    assert len(told["bad-factory:plugin"]["problems"]) == 2
    assert told["twin-one:plugin"]["problems"] == told["attnzoo:builtins"]["problems"] == []
    assert findings["ambiguous"] == {"shared": ["twin-one/shared", "twin-two/shared"]}


def test_list_shows_who_provides_what(seen: dict[str, Any]) -> None:
    provider = {row["name"]: (row["provider"], row["version"]) for row in json.loads(seen["list"]["out"])}
    assert provider["only_two"] == ("twin-two", "1.5")
    assert provider["mha"][0] == "attnzoo"
