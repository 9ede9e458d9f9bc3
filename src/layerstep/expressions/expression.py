"""Expressions as the user types them: Python, with module paths, `$`, `$n` and `out@-1` in it.

`h.1.attn.output` is no Python: the segments that are numbers are rewritten to look-ups in the
scope. `out@-1` is the same value one recorded forward earlier; no one multiplies a matrix by a negative
number. Strings and comments are left alone.
"""

from __future__ import annotations

import ast
import re
import string
from dataclasses import dataclass
from types import CodeType
from typing import Any

from layerstep.errors import BadCondition, message_of
from layerstep.expressions.computing_calls import only_computes

__all__ = [
    "PAST_NAME",
    "PATH_NAME",
    "RESULTS_NAME",
    "UNREADABLE",
    "Expression",
    "Template",
    "may_act",
    "reason_of",
    "rewrite",
]

PATH_NAME = "__path__"
RESULTS_NAME = "__results__"
PAST_NAME = "__past__"

UNREADABLE = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)
"""What Python's compiler raises for text that it cannot read; the last two where it is nested too deeply."""

_TOKENS = re.compile(
    r"""
    (?P<skip> [rRbBfFuU]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"
            | '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*") | \#[^\n]* )
  | (?P<result> \$(?:\$\d*|\d+|_)? )
  | (?P<past> (?<![\w.\])])[A-Za-z_]\w*(?:\.\w+)*@-\d+(?!\w|\.\d) )
  | (?P<dotted> (?<![\w.])[A-Za-z_]\w*(?:\.\w+)*\.\d+(?:\.\w+)*(?!\w)
            | (?<![\w.\])])\d+(?:\.\d+)*\.(?!(?:[eE]\d+|[eE]?[jJ]|real|imag|conjugate|hex
            |is_integer|as_integer_ratio|if|else|and|or|is|in|not|for)\b)[A-Za-z_]\w*(?:\.\w+)* )
    """,
    re.VERBOSE,
)
"""`3.bias` is a path of an `nn.Sequential`, unless a number may have that after it: `1.e5`, `2.0.real`."""


def rewrite(text: str) -> str:
    """The text as Python that the scope can evaluate."""

    def one(match: re.Match[str]) -> str:
        if match["skip"]:
            return match[0]
        if match["result"]:
            return f"{RESULTS_NAME}[{_result(match['result'][1:])}]"
        if match["past"]:
            name, _, back = match["past"].partition("@-")
            return f"{PAST_NAME}({name!r}, {back})"
        head, *rest = match["dotted"].split(".")
        attributes = (f"[{segment}]" if segment.isdigit() else f".{segment}" for segment in rest)
        return f"{PATH_NAME}({head!r})" + "".join(attributes)

    return _TOKENS.sub(one, text)


def _result(sign: str) -> int:
    """`$3` is a number, `$` the last result, `$$` the one before it, `$$2` the one before that, as in gdb."""
    if sign.isdigit():
        return int(sign)
    back = 0 if sign in ("", "_") else int(sign[1:] or 1)
    return -1 - back


def reason_of(error: BaseException) -> str:
    """Why text is not Python, in a few words."""
    if isinstance(error, RecursionError | MemoryError):
        return "it is nested too deeply"
    return (error.msg or "") if isinstance(error, SyntaxError) else message_of(error)


_ONLY_READ = {"inp", "out", "kwargs", "name", "forward", RESULTS_NAME}


def may_act(text: str) -> bool:
    """Could evaluating this do more than read? Text that does not parse counts as yes.

    A call can do anything, and so can an attribute of a module: `mod.weight` of a parametrized layer runs the
    parametrization, and spectral norm moves its buffers then. Attributes of inputs and outputs are safe.
    """
    try:
        tree = ast.parse(rewrite(text))
    except UNREADABLE:
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.NamedExpr | ast.stmt) and not isinstance(node, ast.Expr):
            return True
        if isinstance(node, ast.Attribute) and not _is_of_a_value(node):
            return True
    return False


def _is_of_a_value(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _ONLY_READ


OF_A_CALL = frozenset({"inp", "out", "kwargs", "mod", "name", "forward", "step"})
"""Names that are known at a call of a module without a look at the program's frames."""


def _names_of_a_call(text: str, *, acts: bool) -> frozenset[str] | None:
    tree = ast.parse(rewrite(text), mode="eval")
    names = frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    is_quick = only_computes(tree) if acts else names <= OF_A_CALL
    return names if is_quick else None


@dataclass(frozen=True, slots=True)
class Expression:
    """A condition or a watched expression, compiled once."""

    text: str
    code: CodeType
    may_act: bool
    needs: frozenset[str] | None = None
    """The names of a call that it reads, if it knows no others and does no more than read.

    If it may act, then by calls that only compute as long as those values are plain.
    """

    @classmethod
    def parse(cls, text: str) -> Expression:
        text = text.strip()
        if not text:
            raise BadCondition("an expression is missing")
        try:
            code = compile(rewrite(text), "<expression>", "eval")
        except UNREADABLE as error:
            hint = "compare with ==" if re.search(r"(?<![=!<>])=(?!=)", text) else ""
            raise BadCondition(f"{text!r} is no expression: {reason_of(error)}", hint) from None
        acts = may_act(text)
        return cls(text, code, acts, _names_of_a_call(text, acts=acts))

    def evaluate(self, scope: dict[str, Any]) -> Any:
        return eval(self.code, scope)


@dataclass(frozen=True, slots=True)
class Template:
    """The message of a logpoint: text with `{expression:format}` in it."""

    text: str
    pieces: tuple[tuple[str, Expression | None, str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        try:
            fields = list(string.Formatter().parse(text))
        except ValueError as error:
            raise BadCondition(f"bad template: {error}", "write a brace as {{") from None
        pieces = tuple(
            (literal, Expression.parse(name) if name is not None else None, conversion or "", spec or "")
            for literal, name, spec, conversion in fields
        )
        return cls(text, pieces)

    @property
    def quoted(self) -> str:
        return '"' + self.text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    @property
    def may_act(self) -> bool:
        return any(expression is not None and expression.may_act for _, expression, _, _ in self.pieces)

    def format(self, scope: dict[str, Any]) -> str:
        """The message; a part that fails shows its error in its place."""
        out = []
        for literal, expression, conversion, spec in self.pieces:
            out.append(literal)
            if expression is not None:
                out.append(_one(expression, conversion, spec, scope))
        return "".join(out)


def _one(expression: Expression, conversion: str, spec: str, scope: dict[str, Any]) -> str:
    try:
        value = expression.evaluate(scope)
        if conversion:
            value = ascii(value) if conversion == "a" else repr(value) if conversion == "r" else str(value)
        shape = getattr(value, "shape", None)
        if not spec and expression.text.endswith(".shape") and isinstance(value, tuple):
            return str(list(value))
        if not spec and shape is not None and len(shape):
            return f"<{tuple(shape)}>"  # a whole tensor would be a flood
        if hasattr(value, "item") and shape is not None and not len(shape):
            value = value.item()
        return format(value, spec)
    except Exception as error:
        return f"<{type(error).__name__}: {message_of(error)}>".replace("\n", " ")[:120]
