"""``dataclass`` as the standard library has it, made five times faster: a stop loads sixty of them.

The library compiles each of a class's methods from text, 0.1 ms each (Python 3.11): 35 ms of every stop,
while two agents want the same processors. Here only ``__init__`` is compiled; the others are shared and look
up the fields. What is made is a dataclass like any other: ``fields``, ``replace`` and ``asdict`` take it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as library_dataclass
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]

ORDERING = ("__lt__", "__le__", "__gt__", "__ge__")

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, order: bool = False):
        """Return the decorator that makes a class a dataclass with slots; the options are the library's."""
        assert slots, "a record has slots: its fields are set through them"

        def decorate(written: type) -> type:
            written.__doc__ = written.__doc__ or written.__name__  # else made from a signature
            made = library_dataclass(init=False, repr=False, eq=False, slots=True)(written)
            own = vars(written)
            for name, method in _methods(made, frozen, order).items():
                if name not in own or _is_side_effect(name, own):
                    setattr(made, name, method)
            return made

        return decorate


def _methods(made: Any, frozen: bool, order: bool) -> dict[str, Any]:
    shown = [field.name for field in fields(made) if field.repr]
    key = _key([field.name for field in fields(made) if field.compare])

    def comparison(name: str) -> Callable[[Any, Any], Any]:
        compare = getattr(operator, name)

        def method(self: Any, other: Any) -> Any:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return compare(key(self), key(other))

        return method

    def show(self: Any) -> str:
        words = ", ".join([f"{name}={getattr(self, name)!r}" for name in shown])
        return f"{type(self).__qualname__}({words})"

    found: dict[str, Any] = {"__init__": _init(made), "__repr__": show}
    found["__eq__"] = comparison("__eq__")
    found["__hash__"] = (lambda self: hash(key(self))) if frozen else None
    found["__reduce__"] = _reduce
    if order:
        found |= {name: comparison(name) for name in ORDERING}
    if frozen:
        found |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
    return found


def _is_side_effect(name: str, own: Any) -> bool:
    """Tell Python's own ``__hash__ = None``, which comes with a written ``__eq__``, from a written one."""
    return name == "__hash__" and own[name] is None and "__eq__" in own


def _key(names: list[str]) -> Callable[[Any], Any]:
    """Return what a record is compared and hashed by: the tuple of its values."""
    if len(names) == 1:
        value = operator.attrgetter(names[0])
        return lambda self: (value(self),)
    return operator.attrgetter(*names) if names else lambda self: ()


def _init(made: Any) -> Callable[..., None]:
    """Compile ``__init__``; each value goes in through its slot, which a frozen class leaves open."""
    outside: dict[str, Any] = {"_missing": MISSING}
    parameters, body = ["self"], []
    for field in fields(made):
        name, value = field.name, field.name
        if not field.init or field.kw_only or field.hash is not None:
            raise TypeError(
                f"{made.__qualname__}.{name}: a record's field is given, and by position"
            )
        outside[f"_set_{name}"] = getattr(made, name).__set__
        if field.default is not MISSING:
            outside[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.default_factory is not MISSING:
            outside[f"_new_{name}"] = field.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_new_{name}() if {name} is _missing else {name}"
        else:
            parameters.append(name)
        body.append(f"  _set_{name}(self, {value})")
    if hasattr(made, "__post_init__"):
        body.append("  self.__post_init__()")
    text = "\n".join(
        [
            f"def make({', '.join(outside)}):",
            f" def __init__({', '.join(parameters)}):",
            *(body or ["  pass"]),
            " return __init__",
        ]
    )
    space: dict[str, Any] = {}
    exec(text, vars(sys.modules[made.__module__]), space)
    init: Callable[..., None] = space["make"](**outside)
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {field.name: field.type for field in fields(made)} | {"return": None}
    return init


def _reduce(self: Any) -> tuple[Any, tuple[Any, ...]]:
    """Copy and pickle through ``__init__``: a frozen one lets nothing else set it."""
    members: tuple[Field[Any], ...] = fields(self)
    return type(self), tuple(getattr(self, field.name) for field in members)


def _refuse_set(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
