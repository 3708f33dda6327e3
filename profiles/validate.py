"""Tree → checked form: every error with its place and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from invigilator.profiles.errors import PolicyError, Problem
from invigilator.profiles.source import Listing, Loc, Node, Scalar, Table, locate, plain

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "string": "a word or text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list, such as [a, b]",
    "dict": "a mapping, such as {key: value}",
    "model": "a mapping, such as {key: value}",
    "tuple": "a list, such as [a, b]",
}


def validate(root: Table, model: type[Model]) -> Model:
    """The form that a tree holds. Raises PolicyError with every problem, in the order of their places."""
    problems = list(_empty_values(root, ()))
    try:
        form = model.model_validate(plain(root))
    except ValidationError as error:
        problems += [_problem(detail, root, model) for detail in error.errors(include_url=False)]
    if problems:
        raise PolicyError(sorted(problems, key=lambda problem: (problem.place.line, problem.place.column)))
    return form


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    close = difflib.get_close_matches(word, list(known), 1, 0.6)
    return close[0] if close else None


def _empty_values(node: Node, loc: tuple[str | int, ...]) -> Iterator[Problem]:
    if isinstance(node, Table):
        for key, item in node.items.items():
            if isinstance(item, Scalar) and item.value is None:
                yield Problem(node.places[key], f"`{key}` has no value", "write one, or remove the key")
            else:
                yield from _empty_values(item, (*loc, key))
    elif isinstance(node, Listing):
        for index, item in enumerate(node.items):
            if isinstance(item, Scalar) and item.value is None:
                yield Problem(item.place, "an empty list entry", "write it out, or remove the dash")
            else:
                yield from _empty_values(item, (*loc, index))


def _problem(error: ErrorDetails, root: Table, model: type[BaseModel]) -> Problem:
    kind, loc = error["type"], error["loc"]
    if loc and loc[-1] == "[key]":
        message = f"`{loc[-2]}` cannot be a name here"
        fix = "use lower-case letters, digits, `-` and `_`, at most 64"
        return Problem(locate(root, loc[:-1], key=True), message, fix)
    if kind == "extra_forbidden":
        return _unknown_key(loc, root, model)
    if kind == "missing":
        owner = f" in `{loc[-2]}`" if len(loc) > 1 else ""
        return Problem(locate(root, loc[:-1]), f"`{loc[-1]}` is missing{owner}", f"add `{loc[-1]}: …`")
    message, fix = _sentence(error)
    return Problem(locate(root, loc), f"{_dotted(loc)}: {message}", fix)


def _sentence(error: ErrorDetails) -> tuple[str, str]:
    """(what is wrong, what to write) for a value that is there."""
    kind, given = error["type"], error["input"]
    context = error.get("ctx", {})
    if kind == "policy":
        return str(context["message"]), str(context["fix"])
    shown = f"`{given}`" if isinstance(given, (str, int, float)) else f"a {_shape(given)}"
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "`")
        meant = suggest(str(given), [word.strip("`") for word in expected.replace(" or ", ", ").split(", ")])
        return f"{shown} is not one of {expected}", f"write `{meant}`" if meant else f"write {expected}"
    if kind == "string_pattern_mismatch":
        return f"{shown} is no name", "use lower-case letters, digits, `-`, `_` and `.`, at most 64"
    base = kind.removesuffix("_type")
    if base in _EXPECTED:
        return f"{shown} stands where {_EXPECTED[base]} is expected", f"write {_EXPECTED[base]}"
    said = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{shown} is refused", f"write a value that is {said}"


def _unknown_key(loc: Loc, root: Table, model: type[BaseModel]) -> Problem:
    known = keys_at(model, loc[:-1])
    meant = suggest(str(loc[-1]), known)
    fix = f"write `{meant}`" if meant else f"use one of: {', '.join(known)}"
    inside = f" in `{_dotted(loc[:-1])}`" if len(loc) > 1 else ""
    return Problem(locate(root, loc, key=True), f"unknown key `{loc[-1]}`{inside}", fix)


def keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that a form knows at `loc`."""
    annotation: object = model
    for step in loc:
        annotation = _step(annotation, step)
    form = _form_in(annotation)
    return list(form.model_fields) if form else []


def _step(annotation: object, step: str | int) -> object:
    form = _form_in(annotation, shallow=True)
    if form is not None:
        field = form.model_fields.get(str(step))
        return field.annotation if field else None
    arguments: tuple[object, ...] = getattr(annotation, "__args__", ())
    for argument in arguments:
        if getattr(argument, "__origin__", None) in (list, dict):
            return _step(argument, step)
    return arguments[-1] if arguments else None


def _form_in(annotation: object, *, shallow: bool = False) -> type[BaseModel] | None:
    """The form that an annotation is, or has as a member of a union or below Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if shallow and getattr(annotation, "__origin__", None) in (list, dict):
        return None
    for argument in getattr(annotation, "__args__", ()):
        if getattr(argument, "__origin__", None) in (list, dict):
            continue
        if found := _form_in(argument, shallow=shallow):
            return found
    return (
        _form_in(getattr(annotation, "__origin__", None), shallow=shallow)
        if _is_annotated(annotation)
        else None
    )


def _is_annotated(annotation: object) -> bool:
    return hasattr(annotation, "__metadata__")


def _dotted(loc: Loc) -> str:
    return ".".join(str(step) for step in loc)


def _shape(value: object) -> str:
    return {list: "list", dict: "mapping", bool: "boolean", type(None): "nothing"}.get(type(value), "value")
