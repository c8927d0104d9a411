"""Records are the library's dataclasses in all that a reader of the code expects of them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from opsctl.records import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Where something is."""

    x: int
    y: int = 2
    tags: tuple[str, ...] = ()
    plain = "not a field"
    shared: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class Far(Point):
    z: int = 3


@dataclass(slots=True)
class Basket:
    things: list[int] = dataclasses.field(default_factory=list)
    secret: str = dataclasses.field(default="", repr=False)
    key: str | None = None

    def __post_init__(self) -> None:
        self.key = self.key or "made"


@dataclass(frozen=True, slots=True)
class Empty:
    def __repr__(self) -> str:
        return "nothing"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class LibraryPoint:
    x: int
    y: int = 2
    tags: tuple[str, ...] = ()


def test_made_compared_and_hashed_by_value() -> None:
    """Position, name and default give the same record; another value or class another one."""
    other_kind: Any = LibraryPoint(1)
    assert Point(1) == Point(x=1, y=2, tags=()) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != Point(2)
    assert Point(1) != other_kind
    assert Far(1) != Point(1)
    assert len({Point(1), Point(1), Point(2)}) == 2
    assert Empty() == Empty()
    assert len({Empty(), Empty()}) == 1


@pytest.mark.parametrize("words", [{"y": 1}, {"x": 1, "w": 1}, {}])
def test_wrong_arguments_are_refused(words: dict[str, Any]) -> None:
    """A missing and an unknown argument are a TypeError that names the class."""
    with pytest.raises(TypeError, match="Point"):
        Point(**words)


def test_a_frozen_one_cannot_be_changed() -> None:
    """Neither setting nor deleting, nor a name that is no field."""
    point = Point(1)

    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(point, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point == Point(1)


def test_one_that_may_change_has_its_own_lists_and_no_hash() -> None:
    """A default that is made is made for each; what may change is no key; an unknown name has no slot."""
    one, other = Basket(), Basket(things=[1])
    one.things.append(5)

    assert Basket().things == []
    assert (one.things, other.things, one.key) == ([5], [1], "made")
    with pytest.raises(TypeError):
        hash(one)
    with pytest.raises(AttributeError):
        one.wrong = 1  # type: ignore[attr-defined]


def test_shown_without_what_is_kept_out() -> None:
    """A field that must not be shown is not; a class's own words stay."""
    assert repr(Basket(secret="key-123", key="k")) == "Basket(things=[], key='k')"
    assert repr(Point(1)) == "Point(x=1, y=2, tags=())"
    assert repr(Empty()) == "nothing"


def test_ordered_as_the_library_does() -> None:
    """Field by field, and only among its own kind."""
    assert sorted([Point(2), Point(1, 3), Point(1)]) == [Point(1), Point(1, 3), Point(2)]
    assert Point(1) <= Point(1)
    with pytest.raises(TypeError):
        assert Point(1) < LibraryPoint(1)  # type: ignore[operator]


def test_the_library_s_functions_take_it() -> None:
    """fields, replace, asdict, copies and pickles, of a frozen one too."""
    far = Far(1, tags=("a",))

    assert [field.name for field in dataclasses.fields(far)] == ["x", "y", "tags", "z"]
    assert dataclasses.replace(far, z=9) == Far(1, 2, ("a",), 9)
    assert dataclasses.asdict(far) == {"x": 1, "y": 2, "tags": ("a",), "z": 3}
    assert copy.deepcopy(far) == copy.copy(far) == pickle.loads(pickle.dumps(far)) == far
    assert (Point.plain, Point.shared) == ("not a field", 7)
    match far:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_only_one_method_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own, which cost 0.1 ms each, are not made: that is what this is for."""
    made: list[str] = []
    monkeypatch.setattr(
        dataclasses, "_create_fn", lambda name, *_, **__: made.append(name), raising=False
    )

    @dataclass(frozen=True, slots=True)
    class Quick:
        a: int

    assert made == []
    assert Quick(1).a == 1


@dataclass(frozen=True, slots=True)
class Loose:
    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loose) and other.name.lower() == self.name.lower()


@dataclass(frozen=True, slots=True, order=True)
class Reading:
    value: float | None


def test_its_own_equality_leaves_the_hash_to_the_fields() -> None:
    """Python takes the hash from a class that writes __eq__; the library gives a frozen one its own."""
    assert Loose("A") == Loose("a")
    assert hash(Loose("a")) == hash(Loose("a"))


def test_one_field_is_compared_as_the_library_does() -> None:
    """The same missing or impossible value is equal to itself, also where it cannot be ordered."""
    nothing = float("nan")
    assert Reading(nothing) == Reading(nothing)
    assert Reading(None) <= Reading(None)


@pytest.mark.parametrize(
    "odd",
    [
        dataclasses.field(init=False, default=1),
        dataclasses.field(kw_only=True),
        dataclasses.field(hash=False),
    ],
)
def test_what_it_does_not_do_is_refused(odd: int) -> None:
    """A kind of field that the library knows and this does not is no silent difference."""
    with pytest.raises(TypeError, match=r"Odd\.a"):

        @dataclass(frozen=True, slots=True)
        class Odd:
            a: int = odd
