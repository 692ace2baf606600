"""What a stranger gets: attnzoo's wheel and a plugin in a clean environment, far from this repository.

The environments share the heavy packages of the one that runs the tests, and nothing of attnzoo.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).parents[1]
HELLO = ROOT / "docs/examples/attnzoo-hello"

SOUND_LINE = "        return rms_norm(q, self.q_gain), rms_norm(k, self.k_gain), v\n"
BROKEN_LINE = "        return rms_norm(q, self.q_gain), rms_norm(k, self.q_gain), v\n"


class Outsider:
    """An environment of its own, and a working folder outside of the repository."""

    def __init__(self, folder: Path, *installed: Path | str) -> None:
        self.folder = folder
        self.bin = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        venv.create(folder / "env", with_pip=False)
        (folder / "elsewhere").mkdir()
        attnzoo, *plugins = installed
        self.pip(str(attnzoo))
        # A path in a .pth file is searched last, and .pth files that lie there are not read: the heavy packages are
        # found, an attnzoo that is installed there is hidden, and one that is linked there is not seen.
        shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = Path(self.run(sys_executable(self.bin), "-c", code).stdout.strip())
        (own / "shared.pth").write_text("\n".join(shared))
        for plugin in plugins:
            self.pip("--no-build-isolation", "-e", str(plugin))

    def pip(self, *arguments: str) -> None:
        """Install with the pip of the outer environment, without a look at any index."""
        pip = [sys.executable, "-m", "pip", "--python", sys_executable(self.bin), "install", "--quiet"]
        assert self.run(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", *arguments).returncode == 0

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys_executable(self.bin), "-c", code)

    def attnzoo(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.bin / "attnzoo"), *arguments)

    def pytest(self, *arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        options = ("-q", "-p", "no:cacheprovider", *arguments)
        return self.run(sys_executable(self.bin), "-m", "pytest", *options, at=at)

    def run(self, *command: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        unwanted = ("PYTHON", "PYTEST", "ATTNZOO", "VIRTUAL_ENV", "COLUMNS")
        environment = {word: value for word, value in os.environ.items() if not word.startswith(unwanted)}
        environment |= {"COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=at or self.folder / "elsewhere", env=environment, capture_output=True, text=True, timeout=300
        )
        print(done.stdout, done.stderr)  # for the reader of a failure
        return done


def sys_executable(bin: Path) -> str:
    return str(bin / Path(sys.executable).name)


def words(text: str) -> str:
    """Without the line breaks of a narrow screen."""
    return " ".join(text.split())


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", ".*cache")))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """attnzoo as it would be published."""
    folder = tmp_path_factory.mktemp("wheel")
    hatchling = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(hatchling, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("attnzoo-*.whl")
    return built


@pytest.fixture(scope="module")
def hello(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """Has the example plugin of the documentation."""
    folder = tmp_path_factory.mktemp("hello")
    return Outsider(folder, wheel, copied(HELLO, folder / "attnzoo-hello"))


def outcomes_by_cli(outsider: Outsider, name: str) -> dict[str, str]:
    done = outsider.attnzoo("check", name, "--json", "report.json")
    assert done.returncode == 0
    document = json.loads((outsider.folder / "elsewhere/report.json").read_text())
    (schema,) = (outsider.folder / "env").rglob("attnzoo/checks/engine/report.schema.json")
    jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8"))).validate(document)
    return {result["law"]: result["outcome"] for result in document["reports"][0]["results"]}


def outcomes_by_python(outsider: Outsider, name: str) -> dict[str, str]:
    done = outsider.python(f"import attnzoo; print(attnzoo.check({name!r}).to_json())")
    assert done.returncode == 0
    return {result["law"]: result["outcome"] for result in json.loads(done.stdout)["results"]}


def outcomes_by_pytest(outsider: Outsider, name: str) -> dict[str, str]:
    done = outsider.pytest("-p", "attnzoo.testing", f"--variant={name}", "--junitxml=report.xml")
    assert done.returncode == 0
    found = {}
    for case in ET.parse(outsider.folder / "elsewhere/report.xml").iter("testcase"):
        law = re.search(rf"\[{name}-(.+)\]", case.attrib["name"])
        assert law
        found[law[1]] = case.find("properties/property[@name='attnzoo outcome']").attrib["value"]  # type: ignore[union-attr]
    return found


def test_nothing_comes_from_the_repository(hello: Outsider) -> None:
    code = "import attnzoo, attnzoo_hello; attnzoo.variants(); import attnzoo_builtins as b; import sys; "
    code += "print(attnzoo.__file__, b.__file__, attnzoo_hello.__file__, *sys.path, sep='\\n')"
    places = hello.python(code).stdout.splitlines()
    assert len(places) > 5
    assert [place for place in places[:3] if not Path(place).is_relative_to(hello.folder)] == []
    assert [place for place in places if Path(place or "/") in (ROOT, ROOT / "plugins")] == []


def test_a_stranger_is_listed_beside_the_built_in_variants(hello: Outsider) -> None:
    rows = json.loads(hello.attnzoo("list", "--json").stdout)
    providers = {row["name"]: row["provider"] for row in rows}
    assert providers["hello_qk_norm"] == "attnzoo-hello"
    assert providers["gqa"] == "attnzoo"


def test_three_ways_to_run_give_one_table(hello: Outsider) -> None:
    ways = (outcomes_by_cli, outcomes_by_python, outcomes_by_pytest)
    with ThreadPoolExecutor() as at_once:
        by_cli, by_python, by_pytest = at_once.map(lambda way: way(hello, "hello_qk_norm"), ways)
    assert len(by_cli) > 80
    assert set(by_cli.values()) == {"passed", "not-applicable"}
    assert by_python == by_cli
    assert by_pytest == by_cli


def test_the_example_tests_its_own_oracle(hello: Outsider) -> None:
    done = hello.pytest("tests/test_oracle.py", at=hello.folder / "attnzoo-hello")
    assert done.returncode == 0
    assert "1 passed" in done.stdout


def test_a_broken_copy_is_told_in_the_same_words_all_three_ways(hello: Outsider) -> None:
    """A slip of one letter: keys are normed with the gain of the queries. Only the definition knows better."""
    layer, name, law = hello.folder / "attnzoo-hello/attnzoo_hello/layer.py", "hello_qk_norm", "truth.oracle"
    told = "FAILED truth.oracle (C2): Output and weights are those of the variant's definition in NumPy float64"
    change(layer, SOUND_LINE, BROKEN_LINE)
    try:
        code = f"import attnzoo; r = attnzoo.check({name!r}, only=[{law!r}]); print(r); raise SystemExit(not r.passed)"
        with ThreadPoolExecutor() as at_once:
            by_cli = at_once.submit(hello.attnzoo, "check", name, "--only", law)
            by_python = at_once.submit(hello.python, code)
            by_pytest = at_once.submit(hello.pytest, "-p", "attnzoo.testing", f"--variant={name}", "-k", f"{law}]")
    finally:
        change(layer, BROKEN_LINE, SOUND_LINE)
    for done in (by_cli.result(), by_python.result(), by_pytest.result()):
        assert done.returncode == 1
        assert told in words(done.stdout)
        assert "case options-0: the output, plain, torch.float64: off by" in words(done.stdout)
    assert "no known fault: its oracle is not an attnzoo.oracle.Layer" in words(by_cli.result().stdout)


@pytest.fixture(scope="module")
def author(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Outsider:
    """Has written a plugin with `attnzoo new`, and nothing of it changed yet."""
    folder = tmp_path_factory.mktemp("author")
    outsider = Outsider(folder, wheel)
    done = outsider.attnzoo("new", "bright-idea", "--into", str(folder))
    assert done.returncode == 0
    outsider.pip("--no-build-isolation", "-e", str(folder / "bright-idea"))
    return outsider


def test_a_new_project_is_listed_and_conforms(author: Outsider) -> None:
    assert "bright_idea" in author.attnzoo("list").stdout
    done = author.pytest(at=author.folder / "bright-idea")
    assert done.returncode == 0
    assert re.search(r"\d\d passed, \d+ not applicable", done.stdout)
    assert "failed" not in done.stdout


def test_a_broken_idea_is_diagnosed_and_written_as_a_script(author: Outsider) -> None:
    """Causality forgotten where a mask is given."""
    module = author.folder / "bright-idea/bright_idea.py"
    sound, broken = "            causal=self.causal,\n            scale=self.scale,\n            need", "self.causal"
    change(module, sound, sound.replace(broken, "self.causal and mask is None"))
    only = ("--only", "causality.no_future", "--script", "failure.py")
    done = author.attnzoo("check", "bright_idea", *only)
    assert done.returncode == 1
    told = words(done.stdout)
    assert "FAILED causality.no_future (C5): Changing a token changes no earlier output" in told
    assert "case options-0: mask: outputs before token 1, when tokens from 1 on change: off by" in told
    assert "likely fault: mask.replaces_causality. A mask takes the place of causality" in told
    assert re.search(r"again: attnzoo check bright_idea --only causality.no_future --case \S+ --seed 0", told)

    script = author.run(sys_executable(author.bin), "failure.py")
    assert script.returncode == 1
    assert script.stderr.startswith("causality.no_future (C5), case options-0,")
    assert "Traceback" not in script.stderr
    change(module, sound.replace(broken, "self.causal and mask is None"), sound)
    mended = author.run(sys_executable(author.bin), "failure.py")
    assert (mended.returncode, mended.stdout) == (0, "causality.no_future holds\n")
