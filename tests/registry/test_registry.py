"""Names, registration and loading limits, in zoos made for the test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import attnzoo
from attnzoo.errors import AmbiguousVariant, ConfigError, UnknownVariant
from attnzoo.registry import Registry, zoo

MakeVariant = Callable[..., attnzoo.Variant]
MakePlugin = Callable[..., ModuleType]


def test_names_are_sorted_and_know_their_origin(make_variant: MakeVariant, make_plugin: MakePlugin) -> None:
    registry = Registry([make_plugin("dist-b", make_variant("zeta")), make_plugin("dist-a", make_variant("alpha"))])
    assert registry.names() == list(registry) == ["alpha", "zeta"]
    assert registry.origin("zeta") == "dist-b"
    assert "alpha" in registry
    assert "omega" not in registry
    assert registry.failures == {}


def test_a_bare_variant_is_given(make_variant: MakeVariant) -> None:
    variant = make_variant("tiny")
    registry = Registry([variant])
    assert registry["tiny"] is registry.describe("tiny") is registry["given/tiny"] is variant
    assert registry.origin("tiny") == "given"


def test_a_plugin_may_be_any_object_with_the_hook(make_variant: MakeVariant) -> None:
    hook = attnzoo.hookimpl(lambda: (make_variant(name) for name in ("one", "two")))
    assert Registry([SimpleNamespace(attnzoo_variants=hook)]).names() == ["one", "two"]


def test_a_hook_may_be_renamed_or_meant_for_another_version(make_variant: MakeVariant) -> None:
    hook = attnzoo.hookimpl(specname="attnzoo_variants")(lambda: [make_variant("tiny")])
    later = attnzoo.hookimpl(optionalhook=True)(lambda: None)
    assert Registry([SimpleNamespace(my_variants=hook, attnzoo_of_next_year=later)]).names() == ["tiny"]


def test_one_bare_name_of_two_origins(make_variant: MakeVariant, make_plugin: MakePlugin) -> None:
    ours, theirs = make_variant("gqa"), make_variant("gqa")
    registry = Registry([make_plugin("ours", ours), make_plugin("my_zoo", theirs)])
    assert registry.names() == ["my_zoo/gqa", "ours/gqa"]
    assert registry.ambiguous() == {"gqa": ["my_zoo/gqa", "ours/gqa"]}
    assert registry["ours/gqa"] is ours
    assert registry["My-Zoo/gqa"] is theirs
    with pytest.raises(AmbiguousVariant, match="'gqa'; ask for 'my_zoo/gqa' or 'ours/gqa'"):
        registry.build("gqa", d_model=24, heads=4)


def test_one_distribution_offers_a_name_once(make_variant: MakeVariant, make_plugin: MakePlugin) -> None:
    first = make_variant("gqa")
    registry = Registry([make_plugin("twice", first), make_plugin("twice", make_variant("gqa"), make_variant("new"))])
    assert registry.names() == ["gqa"]
    assert registry["gqa"] is first
    assert registry.failures == {"twice": "twice already offers 'twice/gqa'"}


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("gqua", "unknown variant 'gqua'; did you mean 'gqa'? Installed: gqa, rope."),
        ("zebra", "unknown variant 'zebra'. Installed: gqa, rope."),
        ("elsewhere/gqa", "unknown variant 'elsewhere/gqa'; did you mean 'zoo/gqa'? Installed: gqa, rope."),
        (7, "unknown variant '7'. Installed: gqa, rope."),
    ],
)
def test_an_unknown_name_is_answered(
    make_variant: MakeVariant, make_plugin: MakePlugin, asked: Any, answer: str
) -> None:
    registry = Registry([make_plugin("zoo", make_variant("gqa"), make_variant("rope"))])
    with pytest.raises(UnknownVariant, match=f"^{re.escape(answer)}$"):
        registry.build(asked)


def test_a_glob_names_what_it_matches(make_variant: MakeVariant) -> None:
    registry = Registry([make_variant("gqa"), make_variant("mqa"), make_variant("rope")])
    assert registry.matching("?qa") == ["gqa", "mqa"]
    assert registry.matching("rope") == ["rope"]
    with pytest.raises(UnknownVariant, match=r"no variant matches 'z\*'\. Installed: gqa, mqa, rope\."):
        registry.matching("z*")
    with pytest.raises(UnknownVariant, match=r"did you mean 'rope'\?"):
        registry.matching("ropes")


def test_an_unknown_name_mentions_what_failed_to_load_and_the_limit() -> None:
    registry = Registry([SimpleNamespace(), 42], limit="none")
    assert list(registry.failures) == ["SimpleNamespace", "int"]
    with pytest.raises(UnknownVariant) as caught:
        registry["gqa"]
    assert str(caught.value) == (
        "unknown variant 'gqa'. Installed: none. It may be in a plugin that failed to load: SimpleNamespace, int "
        "(see `attnzoo doctor`). ATTNZOO_PLUGINS=none limits what is loaded."
    )


def test_only_ctrl_c_passes_through_loading() -> None:
    def interrupt() -> list[attnzoo.Variant]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Registry([SimpleNamespace(attnzoo_variants=attnzoo.hookimpl(interrupt))])


class TestRegister:
    def test_adds_a_variant_of_the_session(self, make_variant: MakeVariant) -> None:
        registry = Registry()
        registry.register(make_variant("mine"))
        assert registry.names() == ["mine"]
        assert registry.origin("mine") == "session"

    def test_refuses_a_name_twice_and_says_how(self, make_variant: MakeVariant) -> None:
        registry, first, second = Registry(), make_variant("mine"), make_variant("mine")
        registry.register(first)
        with pytest.raises(ConfigError, match=r"'mine' is already registered.*replace=True.*attnzoo\.temporary"):
            registry.register(second)
        assert registry["mine"] is first
        registry.register(second, replace=True)
        assert registry["mine"] is second

    def test_never_takes_the_name_of_a_plugin(self, make_variant: MakeVariant, make_plugin: MakePlugin) -> None:
        registry = Registry([make_plugin("zoo", make_variant("gqa"))])
        with pytest.raises(ConfigError, match="'gqa' is taken by zoo"):
            registry.register(make_variant("gqa"), replace=True)

    def test_refuses_what_is_no_variant(self) -> None:
        with pytest.raises(ConfigError, match="not a dict"):
            Registry().register({})  # type: ignore[arg-type]


class TestTemporary:
    def test_lasts_for_the_block(self, make_variant: MakeVariant) -> None:
        registry, variant = Registry(), make_variant("mine")
        with registry.temporary(variant) as inside:
            assert inside is registry["mine"] is variant
        assert registry.names() == []

    def test_ends_with_an_error_too(self, make_variant: MakeVariant) -> None:
        registry = Registry()
        with pytest.raises(ZeroDivisionError), registry.temporary(make_variant("mine")):
            1 / 0  # noqa: B018
        assert registry.names() == []

    def test_refuses_a_taken_name_and_leaves_its_owner(self, make_variant: MakeVariant) -> None:
        registry = Registry()
        registry.register(make_variant("mine"))
        with pytest.raises(ConfigError, match="already registered"), registry.temporary(make_variant("mine")):
            pass
        assert registry.names() == ["mine"]


class TestLimit:
    """ATTNZOO_PLUGINS, over two fake distributions beside the real one."""

    @pytest.fixture(autouse=True)
    def distributions(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[[Path, str, str], None]
    ) -> None:
        code = """
            import attnzoo
            from torch import nn

            @attnzoo.hookimpl
            def attnzoo_variants():
                name = __name__.removeprefix("limit_")
                return [attnzoo.Variant(name=name, build=nn.Identity, summary="", cases=[{}])]
        """
        for name in ("limit-one", "limit-two"):
            install(tmp_path, name, code)
            monkeypatch.delitem(__import__("sys").modules, name.replace("-", "_"), raising=False)
        monkeypatch.syspath_prepend(tmp_path)

    @pytest.mark.parametrize(
        ("limit", "names"),
        [
            ("none", set()),
            (" none ", set()),
            ("limit-one", {"one"}),
            ("Limit_Two , limit.one", {"one", "two"}),
            ("", {"one", "two", "mha"}),
        ],
    )
    def test_chooses_the_distributions(self, monkeypatch: pytest.MonkeyPatch, limit: str, names: set[str]) -> None:
        monkeypatch.setenv("ATTNZOO_PLUGINS", limit)
        registry = Registry.installed()
        assert names == set(registry.names()) if limit else names <= set(registry.names())
        assert registry.failures == {}

    def test_a_distribution_without_metadata_harms_nobody(self, tmp_path: Path) -> None:
        (tmp_path / "limit_two-1.5.dist-info" / "METADATA").unlink()
        names = Registry.installed().names()
        assert "one" in names
        assert "two" not in names

    def test_tells_a_distribution_that_there_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATTNZOO_PLUGINS", "limit-ane,limit-two")
        registry = Registry.installed()
        assert registry.names() == ["two"]
        assert "ATTNZOO_PLUGINS" in registry.failures["limit-ane"]
        assert "did you mean 'limit-one'?" in registry.failures["limit-ane"]


def test_the_shared_zoo_is_one() -> None:
    assert zoo() is zoo()
    assert attnzoo.variants() == zoo().names()


def test_the_face_speaks_for_the_shared_zoo(make_variant: MakeVariant) -> None:
    variant = make_variant("for_a_moment")
    with attnzoo.temporary(variant):
        assert attnzoo.describe("for_a_moment") is variant
        assert "for_a_moment" in attnzoo.variants()
        assert type(attnzoo.build("for_a_moment", d_model=24, heads=4)).__name__ == "Layer"
    assert "for_a_moment" not in attnzoo.variants()
