"""Source text of functions for fixed settings, with all that they use: what `danalab.optim.export` writes.

A setting that is fixed becomes a constant, and what depends on it is decided: branches that cannot run, parameters that
are always None and checks are left out, and functions of one short expression are put where they are called.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from types import GenericAlias, ModuleType
from typing import Any

from danalab.optim.source_text import lines_of

_LONGEST_INLINED, _LONGEST_LINE = 90, 108

_Scope = Mapping[str, Any]


class Sources:
    """The definitions that a file needs.

    Args:
        settings: names of those that a parameter group has.
        fixed: setting -> its value in all groups.
        scalars: scalar of a step -> an example of it; what is None here is None in every step.
        decided: expression, as `ast.unparse` writes it -> its value.
        equations: keep those of docstrings.
    """

    def __init__(
        self, settings: Iterable[str], fixed: _Scope, scalars: _Scope, decided: _Scope, *, equations: bool
    ) -> None:
        self.settings, self.fixed, self.scalars, self.decided = frozenset(settings), fixed, scalars, decided
        self.equations = equations
        self.constants: dict[str, Any] = {}
        self._definitions: dict[str, ast.stmt] = {}
        self._made: dict[tuple[Any, str], Any] = {}
        self._waiting: list[Any] = []

    def add(self, wanted: Any) -> None:
        """Add a function or a class, with what it uses."""
        if wanted.__name__ not in self._definitions:
            self._definitions[wanted.__name__] = self.specialised(wanted, {})

    def text(self, before: str, wanted: Iterable[Callable[..., Any]]) -> str:
        """The whole file: imports, constants, the text of a class, and the functions that it calls, with theirs."""
        self._waiting += wanted
        while self._waiting:
            self.add(self._waiting.pop(0))
        definitions = {name: "\n".join(lines_of(node)) for name, node in self._definitions.items()}
        used, waiting = list[str](), [before]
        names: set[str] = set()
        while waiting:
            found = _names(waiting.pop(0))
            names |= found
            new = [name for name in definitions if name in found and name not in used]
            used += new
            waiting += [definitions[name] for name in new]
        known = {name: value for name, value in self.constants.items() if name in names}
        numbers = {name: repr(value) for name, value in known.items() if isinstance(value, (int, float, tuple))}
        constants = [f"{', '.join(numbers)} = {', '.join(numbers.values())}"] if numbers else []
        constants += [f"{name} = {_written(value)}" for name, value in known.items() if name not in numbers]
        names |= set().union(*map(_names, constants))
        used.sort(key=lambda name: not isinstance(self._definitions[name], ast.ClassDef))  # annotations name classes
        classes = sum(isinstance(self._definitions[name], ast.ClassDef) for name in used)
        ordered = [definitions[name] for name in used]
        blocks = ["\n".join(constants), *ordered[:classes], before.strip(), *ordered[classes:]]
        text = "\n\n".join(filter(None, ["\n".join(_imports(names)), *blocks])) + "\n"
        return text.replace("import Tensor\n\nclass", "import Tensor\n\n\nclass")

    def specialised(self, wanted: Any, constants: Mapping[str, ast.expr]) -> Any:
        """The definition for arguments that are constants."""
        key = (wanted, repr(sorted((name, ast.dump(value)) for name, value in constants.items())))
        if key not in self._made:
            node: Any = ast.parse(textwrap.dedent(inspect.getsource(wanted))).body[0]
            scope: dict[str, Any] = dict(vars(inspect.getmodule(wanted)))
            if inspect.isfunction(wanted):
                scope |= inspect.getclosurevars(wanted).nonlocals
            self._made[key] = _Folding(self, scope, constants).definition(node)
        return self._made[key]

    def refer(self, name: str, value: Any) -> ast.expr | None:
        """An expression for a name of a module, with its definition; None: as it is written."""
        if isinstance(value, GenericAlias):
            return ast.parse(str(value), mode="eval").body
        if _is_ours(value) and callable(value):
            self._waiting.append(value)
            return ast.Name(value.__name__, ast.Load())
        if isinstance(value, (int, float, str, tuple, re.Pattern)):
            self.constants[name] = value
        return None


class _Folding(ast.NodeTransformer):
    """Decides one definition."""

    def __init__(self, sources: Sources, scope: _Scope, constants: Mapping[str, ast.expr]) -> None:
        self.sources, self.scope, self.bound = sources, scope, dict(constants)
        self.present: set[str] = set()
        self.local: set[str] = set()

    def visit(self, node: ast.AST) -> Any:
        if (
            isinstance(node, (ast.Call, ast.BoolOp, ast.Compare))
            and (text := ast.unparse(node)) in self.sources.decided
        ):
            return ast.Constant(self.sources.decided[text])
        return super().visit(node)

    def definition(self, node: Any) -> Any:
        """The function or class with its body decided."""
        if isinstance(node, ast.FunctionDef):
            scalars = self.sources.scalars
            own = {each.arg for each in node.args.kwonlyargs}
            self.bound |= {name: ast.Constant(None) for name in own if scalars.get(name, 0) is None}
            self.present = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)
                            and scalars.get(each.arg) is not None}  # fmt: skip
            node.args = self.signature(node.args)
            node.returns = _annotation(node.returns)
            self.local = {
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
            self.local |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            if node.returns is not None:
                node.returns = self.visit(node.returns)
            for each in ast.walk(node.args):
                if isinstance(each, ast.arg) and each.annotation is not None:
                    each.annotation = self.visit(each.annotation)
        documented = ast.get_docstring(node)
        body = node.body[1:] if documented else node.body
        node.body = _tightened(self.block(body)) if isinstance(node, ast.FunctionDef) else self.block(body)
        if documented:
            node.body.insert(0, ast.Expr(ast.Constant(_shortened(documented, self.sources.equations))))
        return ast.fix_missing_locations(node)

    def signature(self, given: ast.arguments) -> ast.arguments:
        """Without parameters that are constants, annotations of plain numbers, and defaults of scalars."""
        first = len(given.args) - len(given.defaults)
        defaults = [None] * first + list(given.defaults)
        kept = [(arg, default) for arg, default in zip(given.args, defaults, strict=True) if arg.arg not in self.bound]
        pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
        by_name = [(arg, None if arg.arg in self.sources.scalars else default) for arg, default in pairs
                   if arg.arg not in self.bound]  # fmt: skip
        for arg in [*(arg for arg, _ in (*kept, *by_name)), *filter(None, (given.vararg, given.kwarg))]:
            arg.annotation = _annotation(arg.annotation)
        return ast.arguments(
            posonlyargs=[], args=[arg for arg, _ in kept], vararg=given.vararg, kwarg=given.kwarg,
            kwonlyargs=[arg for arg, _ in by_name], kw_defaults=[default for _, default in by_name],
            defaults=[default for _, default in kept if default is not None],
        )  # fmt: skip

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, ast.If) and all(isinstance(each, ast.Raise) for each in statement.body):
                continue  # a check
            made = self.visit(statement)
            done += made if isinstance(made, list) else [] if made is None else [made]
            if done and isinstance(done[-1], ast.Return):
                break
        return done

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.args, node.returns = self.signature(node.args), None
        node.body = self.block(node.body)
        return node

    def visit_If(self, node: ast.If) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.block(node.body if test.value else node.orelse)
        return ast.If(test, self.block(node.body), self.block(node.orelse))

    def visit_For(self, node: ast.For) -> Any:
        return ast.For(self.visit(node.target), self.visit(node.iter), self.block(node.body), [], None)

    def visit_Raise(self, node: ast.Raise) -> Any:
        return None

    def visit_Assign(self, node: ast.Assign) -> Any:
        value, target = self.visit(node.value), node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
            fixed = [(name, each) for name, each in pairs if isinstance(each, ast.Constant)]
            self.bound |= {name.id: each for name, each in fixed if isinstance(name, ast.Name)}
            if len(fixed) == len(pairs):
                return None
            kept = [pair for pair in pairs if pair not in fixed]
            columns = [name for name, _ in kept], [each for _, each in kept]
            target, value = (ast.Tuple(each) if len(each) > 1 else each[0] for each in columns)
        outside = isinstance(value, ast.Name) and value.id not in self.local
        if isinstance(target, ast.Name) and (outside or isinstance(value, ast.Constant)):
            self.bound[target.id] = value
            return None
        return ast.Assign([self.visit(target)], value, None)

    def visit_Expr(self, node: ast.Expr) -> Any:
        value = self.visit(node.value)
        return value if isinstance(value, (ast.stmt, list)) else ast.Expr(value)

    def visit_Name(self, node: ast.Name) -> Any:
        if isinstance(node.ctx, ast.Load) and node.id in self.bound:
            return copy.deepcopy(self.bound[node.id])
        if isinstance(node.ctx, ast.Load) and node.id not in self.local and node.id in self.scope:
            return self.sources.refer(node.id, self.scope[node.id]) or node
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        value = self.resolved(node)
        if (
            value is not None
            and isinstance(self.resolved(node.value), ModuleType)
            and _is_ours(self.resolved(node.value))
        ):
            return self.sources.refer(node.attr, value) or ast.Name(node.attr, ast.Load())
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        key = str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
        if key in self.sources.fixed:
            return ast.Constant(self.sources.fixed[key])
        example = self.sources.scalars.get(key, 0)
        return ast.Constant(example) if example is None or isinstance(example, str) else self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> Any:
        pairs = [(key, self.visit(value)) for key, value in zip(node.keys, node.values, strict=True)]
        kept = [(key, value) for key, value in pairs if not (isinstance(value, ast.Constant)
                and (value.value is None or isinstance(value.value, str)))]  # fmt: skip
        return _flat(ast.Dict([key for key, _ in kept], [value for _, value in kept]))

    def visit_Compare(self, node: ast.Compare) -> Any:
        left, right, how = self.visit(node.left), self.visit(node.comparators[0]), node.ops[0]
        in_group = isinstance(right, ast.Name) and right.id == "group" and isinstance(left, ast.Constant)
        if in_group and isinstance(how, (ast.In, ast.NotIn)):
            return ast.Constant((left.value in self.sources.settings) == isinstance(how, ast.In))
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant) and isinstance(how, ast.Eq):
            return ast.Constant(left.value == right.value)
        if isinstance(how, (ast.Is, ast.IsNot)) and isinstance(right, ast.Constant):
            named = isinstance(left, ast.Name) and left.id in self.present
            if named or isinstance(left, ast.Constant) or self.is_scalar(left):
                is_none = isinstance(left, ast.Constant) and left.value is None
                return ast.Constant(is_none == isinstance(how, ast.Is))
        return ast.Compare(left, node.ops, [right, *map(self.visit, node.comparators[1:])])

    def is_scalar(self, node: ast.expr) -> bool:
        """Whether it is an entry of the scalars, which none of is None here."""
        if not isinstance(node, ast.Subscript) or ast.unparse(node.value) != "s":
            return False
        return isinstance(node.slice, ast.Constant) and node.slice.value in self.sources.scalars

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        ends = isinstance(node.op, ast.Or)
        kept, last = list[ast.expr](), ast.Constant(None)
        for value in map(self.visit, node.values):
            if not isinstance(value, ast.Constant):
                kept.append(value)
            elif bool(value.value) == ends:
                return ast.BoolOp(node.op, [*kept, value]) if ends and kept else value
            else:
                last = value
        return ast.BoolOp(node.op, kept) if len(kept) > 1 else kept[0] if kept else last

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.visit(node.operand)
        if isinstance(node.op, ast.Not) and isinstance(value, ast.Constant):
            return ast.Constant(not value.value)
        return ast.UnaryOp(node.op, value)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test = self.visit(node.test)
        if isinstance(test, ast.Constant):
            return self.visit(node.body if test.value else node.orelse)
        return ast.IfExp(test, self.visit(node.body), self.visit(node.orelse))

    def visit_Call(self, node: ast.Call) -> Any:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "get" and ast.unparse(function.value) == "group":
            return self.setting(node)
        target = self.resolved(function)
        if isinstance(function, ast.Name) and function.id == "isinstance" and ast.unparse(node.args[1]) == "Tensor":
            return ast.Constant(False)  # of numbers
        args = [self.visit(each) for each in node.args]
        keywords = [ast.keyword(each.arg, self.visit(each.value)) for each in node.keywords]
        if inspect.isfunction(target) and _is_ours(target):
            return self.call(target, args, keywords)
        made = ast.Call(self.visit(function), args, keywords)
        of_text = (isinstance(made.func, ast.Name) and made.func.id == "str") or (
            isinstance(made.func, ast.Attribute) and isinstance(made.func.value, ast.Constant)
        )
        if of_text and all(isinstance(each, ast.Constant) for each in args):
            return ast.Constant(eval(ast.unparse(made)))
        return made

    def setting(self, node: ast.Call) -> ast.expr:
        key: Any = node.args[0].value  # pyright: ignore[reportAttributeAccessIssue]
        if key in self.sources.fixed:
            return ast.Constant(self.sources.fixed[key])
        if key in self.sources.settings:
            return ast.Subscript(node.func.value, node.args[0], ast.Load())  # pyright: ignore
        return self.visit(node.args[1]) if len(node.args) > 1 else ast.Constant(None)

    def call(self, target: Any, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        """A call of one of our functions, or its only expression, or its statements if it returns nothing."""
        names = list(inspect.signature(target).parameters)
        given: dict[Any, ast.expr] = dict(zip(names, args, strict=False)) | {each.arg: each.value for each in keywords}
        simple = not any(isinstance(each, ast.Starred) for each in args) and None not in given
        constants = {name: value for name, value in given.items() if name and isinstance(value, ast.Constant)
                     and (value.value is None or isinstance(value.value, (bool, str)))}  # fmt: skip
        for parameter in inspect.signature(target).parameters.values() if simple else ():
            if parameter.name not in given and parameter.default is None:
                constants[parameter.name] = ast.Constant(None)
        made = self.sources.specialised(target, constants)
        parameters = [each.arg for each in (*made.args.args, *made.args.kwonlyargs)]
        [*_, last] = made.body
        documented = isinstance(made.body[0], ast.Expr) and isinstance(made.body[0].value, ast.Constant)
        if simple and len(made.body) == 1 + documented and isinstance(last, (ast.Return, ast.Expr, ast.If)):
            inner: Any = last if isinstance(last, ast.If) else last.value
            uses = [each.id for each in ast.walk(inner) if isinstance(each, ast.Name)]
            short = isinstance(inner, (ast.If, ast.Dict)) or len(ast.unparse(inner)) <= _LONGEST_INLINED
            once = all(isinstance(given.get(name), (ast.Name, ast.Constant, ast.Subscript, ast.Attribute))
                       or uses.count(name) < 2 for name in parameters)  # fmt: skip
            if short and once and all(name in given for name in parameters):
                return _Put({name: given[name] for name in parameters}).visit(copy.deepcopy(inner))
        body = made.body[documented:]
        if simple and not any(isinstance(each, ast.Return) for one in body for each in ast.walk(one)):
            uses = [each.id for one in body for each in ast.walk(one) if isinstance(each, ast.Name)]
            kept = [name for name in parameters if uses.count(name) > 1 and not isinstance(given[name], ast.Name)]
            first = [ast.Assign([ast.Name(name, ast.Store())], given[name], None, lineno=0) for name in kept]
            put = _Put({name: given[name] for name in parameters if name not in kept})
            return [*first, *(put.visit(copy.deepcopy(each)) for each in body)]
        self.sources._definitions.setdefault(made.name, made)
        if ast.dump(self.sources._definitions[made.name]) != ast.dump(made):
            raise ValueError(f"{made.name} is called with different constants")
        kept = [value for name, value in zip(names, args, strict=False) if name not in constants]
        return ast.Call(ast.Name(made.name, ast.Load()), kept if simple else args,
                        [each for each in keywords if each.arg not in constants])  # fmt: skip

    def resolved(self, node: ast.expr) -> Any:
        """The value of a name, or of an attribute of a module, outside the function."""
        if isinstance(node, ast.Name):
            return None if node.id in self.local or node.id in self.bound else self.scope.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(module := self.resolved(node.value), ModuleType):
            return getattr(module, node.attr, None)
        return None


_IMPORTS = {
    **{name: (0, f"import {name}") for name in ("math", "re")},
    **{name: (1, f"from collections.abc import {name}") for name in ("Callable", "Sequence", "Mapping")},
    "Any": (2, "from typing import Any"),
    "torch": (4, "import torch"),
    "Tensor": (5, "from torch import Tensor"),
}


def _imports(names: set[str]) -> list[str]:
    """The import lines of the names that are used."""
    return [line for _, line in sorted({_IMPORTS[name] for name in names & set(_IMPORTS)} | {(3, "")})]


def _names(text: str) -> set[str]:
    """The names that a text uses and does not set."""
    nodes = list(ast.walk(ast.parse(text)))
    used = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    return used - {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)} - {
        each.arg for each in nodes if isinstance(each, ast.arg)}  # fmt: skip


def _written(value: Any) -> str:
    if isinstance(value, re.Pattern):
        return f're.compile(r"{value.pattern}")'
    return repr(value).replace("'", '"')


class _Put(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> Any:
        return copy.deepcopy(self.values.get(node.id, node))


def _tightened(body: list[ast.stmt]) -> list[ast.stmt]:
    """A function's statements, with values that are used once where they are used, and without those that are not."""
    if isinstance(body[-1], ast.Return) and body[-1].value is None:
        body = body[:-1]
    while len(body) > 1 and isinstance(last := body[-1], ast.Return) and last.value is not None:
        before = body[-2]
        if isinstance(before, ast.If) and isinstance(early := before.body[-1], ast.Return) and early.value is not None:
            if len(before.body) > 1 or before.orelse:
                break
            value: ast.expr = ast.IfExp(before.test, early.value, last.value)
        elif isinstance(before, ast.Assign) and isinstance(name := before.targets[0], ast.Name):
            if [each.id for each in ast.walk(last.value) if isinstance(each, ast.Name)].count(name.id) != 1:
                break
            value = _flat(_Put({name.id: before.value}).visit(copy.deepcopy(last.value)))
        else:
            break
        if not isinstance(value, ast.Dict) and len(ast.unparse(value)) > _LONGEST_LINE:
            break
        body = [*body[:-2], ast.Return(value)]
    used = {
        each.id
        for one in body
        for each in ast.walk(one)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }
    return [each for each in body if not (isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
            and each.targets[0].id not in used)]  # fmt: skip


def _flat(value: ast.expr) -> ast.expr:
    """A dictionary with those that are unpacked into it; of equal keys the last has the value, as always."""
    if not isinstance(value, ast.Dict):
        return value
    pairs = list[tuple[ast.expr | None, ast.expr]]()
    for key, each in zip(value.keys, value.values, strict=True):
        inner = _flat(each) if key is None else each
        pairs += (
            zip(inner.keys, inner.values, strict=True) if key is None and isinstance(inner, ast.Dict) else [(key, each)]
        )
    by_key: dict[str, tuple[ast.expr | None, ast.expr]] = {}
    for index, (key, each) in enumerate(pairs):
        by_key[f"**{index}" if key is None else ast.unparse(key)] = (key, each)
    return ast.Dict([key for key, _ in by_key.values()], [each for _, each in by_key.values()])


def _is_ours(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return name.startswith("danalab.")


def _annotation(given: ast.expr | None) -> ast.expr | None:
    """Without those of plain numbers and of what has any type."""
    text = "" if given is None else ast.unparse(given).removesuffix(" | None")
    return (
        None
        if text.startswith("Sequence[")
        or text in ("Scalar", "float", "Any", "Mapping[str, Any]", "dict[str, Scalar]", "dict[str, Any]")
        else given
    )


def _shortened(docstring: str, equations: bool) -> str:
    """Its first paragraph, and the equations that follow."""
    first, *others = re.split(r"\n\n", docstring)
    shown = [textwrap.indent(textwrap.dedent(each), "    ") for each in others[:equations] if each.startswith("    ")]
    return "\n\n".join([textwrap.indent(first, "    ").lstrip(), *shown]) + "\n    " * bool(shown)
