"""How many small changes to the bricks and the built-in variants go unnoticed: `python tests/mutation.py`.

Changes one operator, constant or condition at a time, and asks the tests beside the file, then the laws, then all unit
tests, whether they notice. Each change is tried in a forked process that imports attnzoo anew with the changed source.
Prints the survivors and the score; a survivor is to be killed by a better test, or listed in `EQUIVALENT` with the
reason why nothing can notice it. What is listed there for code that is gone is told as well.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
TARGETS = [*sorted((ROOT / "attnzoo/ops").glob("*.py")), *sorted((ROOT / "plugins/attnzoo_builtins").glob("*.py"))]
VARIANTS = ("rope", "gqa")  # whose laws a changed brick is held to; a changed variant is held to its own
UNIT_TESTS = ("tests/ops", "tests/builtins")

# "file: changed code" -> why no test can tell the change from the original.
EQUIVALENT: dict[str, str] = {
    "eager.py: return logits.masked_fill(blind, 1.0).softmax(dim=-1).masked_fill(blind, 0.0)": (
        "any finite number makes a blind row harmless before the softmax; it is zeroed after it"
    ),
    "sdpa.py: return (q * 0.0, 2.0) if scale == 0 else (-q, -scale)": (
        "the queries are zero there, whatever they are scaled by"
    ),
    "terms.py: @dataclass(slots=False)": "slots make it quicker to build, and change nothing else",
    "segments.py: parts = zip(*(x.split_with_sizes(borders[0], dim=2) for x in (q, k, v)), borders[0], strict=False)": (
        "each tensor falls into as many parts as there are borders"
    ),
    "blocks.py: for start, queries in zip(range(0, max(t, 1), n), torch.split(q, n, dim=2), strict=False):": (
        "the queries fall into as many blocks as there are starts"
    ),
    "blocks.py: for start, queries in zip(range(0, max(t, 2), n), torch.split(q, n, dim=2), strict=True):": (
        "a block has 16 queries or more, so that 1 and 2 of them are one block"
    ),
    "blocks.py: logits[..., -hidden.shape[+1]:].masked_fill_(hidden, float('-inf'))": "hidden has two axes",
    "blocks.py: capped[..., -hidden.shape[+1]:].masked_fill_(hidden, float('-inf'))": "hidden has two axes",
    "blocks.py: return max(16, min(256, ROOM // max(2, b * h * reach)))": "both leave room for 256 queries and more",
    "blocks.py: z = x.mul_(2 / c).clamp_(max=41.0).expm1_()": "tanh is 1 from 20 on, to the last digit",
    "blocks.py: mixed = checkpoint(function, q, terms, cut, *pieces, use_reentrant=False, "
    "preserve_rng_state=terms.dropout >= 0)": "without dropout nothing is drawn, whether or not its state is kept",
    **{
        f"blocks.py: {code}": "a piece more than needed is read, and cut off again"
        for code in (
            "first = min(reach.start, max(s - 2, 0)) // n",
            "first = min(reach.start, max(s - 1, 1)) // n",
        )
    },
    "heads.py: return min((n for n in range(1, number + 2) if number % n == 0), key=lambda n: abs(n - wish))": (
        "no number is divided by the one after it"
    ),
    **{
        f"{name}.py: def project(self, x: Tensor, context: Tensor | None=None, *, positions: Tensor | None=None, "
        "offset: int=1) -> tuple[Tensor, Tensor, Tensor]:": "this project has no positions, and does not read offset"
        for name in ("grouped", "layer")
    },
    "layer.py: orderless = not need_weights and mask is None and (key_mask is None) "
    "and (self.terms().keys() < ORDERLESS)": "keys put in order for a layer of all three terms: slower, and the same",
    "attend.py: if causal and first_query <= s - 1:": "a lone query sees all keys, by a rule or without",
    "attend.py: if causal and first_query < s + 1:": "a lone query sees all keys, by a rule or without",
    "flex.py: limit = 'cache_size_limit' if hasattr(config, 'recompile_limit') else 'recompile_limit'": (
        "where torch knows the new name, the old one is another for it"
    ),
    **{
        f"sdpa.py: q = torch.zeros({size}, device='cpu', requires_grad=True)": "the same question in another size"
        for size in ("2, 2, 1, 8", "1, 3, 1, 8", "1, 2, 2, 8", "1, 2, 1, 9")
    },
    "cache.py: def append(self, k: Tensor, v: Tensor, *, in_order: bool=False) -> tuple[Tensor, Tensor]:": (
        "a cache that grows has its keys in order, asked or not"
    ),
    "sdpa.py: q, k, v = (F.pad(x, (0, max(d, e) + x.shape[-1])) for x in (q, k, v))": (
        "more channels of zeros than needed add nothing"
    ),
    **{
        f"sdpa.py: if {code}:": "keys that no query sees are cut off or hidden, which is one"
        for code in (
            "reach.start >= 0 or reach.stop < s",
            "reach.start > 1 or reach.stop < s",
            "reach.start > 0 or reach.stop <= s",
        )
    },
    "masks.py: if seen.dim() > 2:": "a mask has 2 or 4 axes, so that what is left has 1 or 3",
    "masks.py: if mask.dim() == 4 and any((size not in (1, full) for size, full in zip(mask.shape, (b, h, t, s), "
    "strict=False))):": "both have 4 axes there",
    "banded.py: return (n, rule.behind + -(rule.behind - n + rule.ahead) % 16)": "n is a multiple of 16 itself",
    "explain.py: def visible(terms: Terms, t: int, s: int, like: Tensor, block: int=257) -> tuple[int, float, int]:": (
        "the keys are counted in other blocks"
    ),
    "explain.py: keys = torch.full((2,), s) if seen is None else seen.expand(*seen.shape[:-1], s).sum(-1)": (
        "two equal counts have the least, mean and most of one"
    ),
    "rope.py: n = math.isqrt(t + 1) + 1 if t else 1": "a row in other pieces, cut to the same length",
    "rope.py: n = math.isqrt(t - 1) + 1 if t else 2": "no token is turned, by however many",
    "rope.py: for given, turned, c, s in zip(*pieces, strict=False):": "all four are cut at the same tokens",
    **{
        f"rope.py: return array(kind, [*chain(*zip(cos, cos, strict={a})), *chain(*zip(minus, sin, strict={b}))])": (
            "as many cosines as sines, and minus sines"
        )
        for a, b in ((False, True), (True, False))
    },
    "rope.py: if not isinstance(rotary_dim, int) or rotary_dim % 2 or (not 1 < rotary_dim <= head_dim):": (
        "1 is odd, and refused for that"
    ),
}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed file: where, and the statement before and after."""

    path: Path
    line: int
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.path.name}: {self.after}"

    @property
    def module(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "plugins" else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file. Error messages, docstrings and annotations are left alone."""
    text = path.read_text(encoding="utf-8")
    count = len(list(_places(ast.parse(text))))
    for number in range(count):
        tree = ast.parse(text)
        node, statement = list(_places(tree))[number]
        before = ast.unparse(statement).splitlines()[0]
        _change(node)
        after = next(
            (new for old, new in zip(_lines(text), ast.unparse(tree).splitlines(), strict=False) if old != new), ""
        )
        yield Mutant(path, node.lineno, before, after.strip(), ast.unparse(tree))


def _lines(text: str) -> list[str]:
    return ast.unparse(ast.parse(text)).splitlines()


def _places(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.stmt]]:
    """The expressions that can be changed, with the statement that each stands in."""

    def walk(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.expr, ast.stmt]]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.ImportFrom | ast.Import) or _only_says(node):
            return
        statement = node if isinstance(node, ast.stmt) else statement
        if isinstance(node, ast.expr) and statement is not None and _changeable(node):
            yield node, statement
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                data = isinstance(node, ast.Module) and isinstance(child, ast.Assign)
                if isinstance(child, ast.AST) and not data:
                    yield from walk(child, statement)

    yield from walk(tree, None)


def _only_says(node: ast.AST) -> bool:
    """A signature for the type checker: it says something and does nothing."""
    marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in marks)


def _changeable(node: ast.expr) -> bool:
    match node:
        case ast.BinOp():
            return type(node.op) in SWAPS
        case ast.Compare():
            return type(node.ops[0]) in SWAPS
        case ast.BoolOp() | ast.IfExp():
            return True
        case ast.UnaryOp():
            return isinstance(node.op, ast.Not | ast.USub | ast.Invert)
        case ast.Constant():
            return isinstance(node.value, bool | int | float)
    return False


def _change(node: ast.expr) -> None:
    """Change an expression in place."""
    match node:
        case ast.BinOp():
            node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.Compare():
            node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[call-overload]
        case ast.BoolOp():
            node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
        case ast.IfExp():
            node.body, node.orelse = node.orelse, node.body
        case ast.UnaryOp():
            node.op = ast.UAdd() if isinstance(node.op, ast.USub) else _Nothing.of(node)
        case ast.Constant():
            value = node.value
            node.value = (not value) if isinstance(value, bool) else value + 1  # type: ignore[operator]


class _Nothing:
    """Takes `not` or `~` away by doubling it."""

    @staticmethod
    def of(node: ast.UnaryOp) -> ast.unaryop:
        node.operand = ast.UnaryOp(op=type(node.op)(), operand=node.operand)
        return node.op


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from changed source."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.mutant.module:
            return None
        inside = [str(self.mutant.path.parent)] if self.mutant.path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, self.mutant.path, loader=self, submodule_search_locations=inside
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.mutant.source, str(self.mutant.path), "exec"), module.__dict__)


def noticed(mutant: Mutant) -> str:
    """Who notices a mutant, "" if nobody does. Runs in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer = _judge(mutant)
        except BaseException as error:
            answer = f"{type(error).__name__} at import or run"
        os.write(writer, answer.encode()[:2000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        answer = told.read()
    _, status = os.waitpid(child, 0)
    return answer if status == 0 else "crash"


def _judge(mutant: Mutant) -> str:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)
    sys.meta_path.insert(0, Changed(mutant))
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    options += ["--assert=plain", "-o", "addopts=--import-mode=importlib"]
    nearest = sorted((ROOT / "tests/ops").glob(f"test_{mutant.path.stem}*.py"))
    if nearest and pytest.main([*options, *map(str, nearest)]) == 1:
        return "the tests beside it"
    import attnzoo
    from attnzoo.checks import LAWS
    from attnzoo.checks.engine.report import RED
    from attnzoo.checks.engine.runner import Run

    built_here = [name for name in attnzoo.variants() if attnzoo.describe(name).build.__module__ == mutant.module]
    for name in built_here or VARIANTS:
        for case in ("options-0", ""):  # one case finds most, and finds it fast
            run = Run(attnzoo.describe(name), LAWS, explain=False, case=case)
            for law in LAWS:
                if run.result(law.id).outcome in RED:
                    return f"{name} {law.id}"
    code = pytest.main([*options, *(str(ROOT / folder) for folder in UNIT_TESTS)])
    return "unit tests" if code == 1 else "" if code == 0 else f"pytest exit {code}"


def main(patterns: Sequence[str]) -> int:
    """Try every mutant of the files whose name contains one of the patterns, or of all."""
    import einops  # noqa: F401
    import numpy  # noqa: F401
    import rich.console  # noqa: F401
    import torch

    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    os.chdir(ROOT)
    started, tried, survivors = time.time(), 0, []
    targets = [path for path in TARGETS if not patterns or any(pattern in path.name for pattern in patterns)]
    unused = {name for name in EQUIVALENT if name.partition(":")[0] in {path.name for path in targets}}
    for path in targets:
        for mutant in mutants(path):
            who = noticed(mutant)
            tried += 1
            unused.discard(mutant.name)
            excuse = EQUIVALENT.get(mutant.name, "")
            mark = "killed" if who else "equivalent" if excuse else "SURVIVED"
            print(f"{mark:10} {path.name}:{mutant.line}: {mutant.after}   [{who or excuse}]", flush=True)
            if not who and not excuse:
                survivors.append(mutant)
    for name in sorted(unused):
        print(f"{'no change':10} {name}   [listed as equivalent, and not to be made any more]")
    print(f"{tried - len(survivors)} of {tried} noticed or equivalent, {time.time() - started:.0f} s")
    return 1 if survivors or unused else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
