"""A pickle machine that builds data and runs nothing.

Python's unpickler imports what a file names and calls it. This one knows names as mere symbols: a name that the caller's
vocabulary lacks ends the reading, "calling" a name runs a function of ours, and an object is a name with a dict of
attributes. Opcodes are told apart by the standard library's `pickletools`, so a stream of any protocol is understood far
enough to say which object it asked for. This module must not know torch, archives or what a checkpoint looks like.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from edgewise.errors import CheckpointError, UnsafeCheckpointError

MAX_OPCODES = 4_000_000
"""A checkpoint of a thousand tensors has about forty thousand; the bound stops streams that only fill memory."""

MALFORMED = (ValueError, IndexError, KeyError, OverflowError, struct.error)
"""What a stream that is no pickle raises here: unknown opcodes, an empty stack, a memo that was never filled."""

HIGHEST_PROTOCOL = 5
PYTHON_2_NAMES = {"__builtin__.long": "builtins.int", "__builtin__.unicode": "builtins.str"}
KEY_TYPES = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Global:
    """A dotted name that a stream mentioned; nothing was imported."""

    name: str


@dataclass(eq=False)
class Instance:
    """An object that a stream described: the name of its class, and its attributes once they are set."""

    name: str
    state: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Vocabulary:
    """The names that a format needs, and what each may be used for.

    Attributes:
        mentioned: Names that may stand as values.
        built: Names of classes whose objects may appear; each becomes an `Instance`.
        called: Names that may be called, with the function of ours that takes the arguments instead.
        persistent: Takes the persistent identifier of data that is kept outside the stream.
    """

    mentioned: frozenset[str]
    built: frozenset[str]
    called: Mapping[str, Callable[..., Any]]
    persistent: Callable[[Any], Any]

    def __contains__(self, name: str) -> bool:
        """Return whether the format has the name at all."""
        return name in self.mentioned or name in self.built or name in self.called


def interpret(data: bytes, vocabulary: Vocabulary, label: str) -> Any:
    """Build the object that a pickle stream describes, out of plain containers, `Global` and `Instance`.

    Args:
        data: The stream.
        vocabulary: The names that may appear.
        label: What to call the file in messages.

    Returns:
        The object on top of the stack where the stream stops.

    Raises:
        UnsafeCheckpointError: The stream asks for an object that the vocabulary lacks, or for a use that it forbids.
        CheckpointError: The stream is damaged or longer than any checkpoint.
    """
    machine = _Machine(vocabulary, label)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count >= MAX_OPCODES:
                message = f"{label} describes more objects than any checkpoint has; it is not one, or it is damaged"
                raise CheckpointError(message)
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, argument)
    except CheckpointError:
        raise
    except MALFORMED as error:
        message = f"{label} is damaged: the description of its contents cannot be read"
        raise CheckpointError(message) from error
    message = f"{label} is damaged: the description of its contents has no end"
    raise CheckpointError(message)


class _Machine:
    """Stack, marks and memo of one stream."""

    def __init__(self, vocabulary: Vocabulary, label: str) -> None:
        self.stack: list[Any] = []
        self._vocabulary = vocabulary
        self._label = label
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in LITERALS:
            self.stack.append(argument)
        elif opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode]())
        elif opcode in PUTS:
            self._memo[argument] = self.stack[-1]
        elif opcode in GETS:
            self.stack.append(self._memo[argument])
        else:
            STEPS.get(opcode, _Machine.unknown)(self, argument)

    def unknown(self, _: Any) -> None:
        message = f"{self._label} is damaged: its description uses a step that checkpoints do not have"
        raise CheckpointError(message)

    def refuse(self, what: str) -> NoReturn:
        shown = "".join(letter if letter.isprintable() else "?" for letter in what)[:200]
        message = (
            f"{self._label} asks for {shown}, which is not part of the checkpoint format, so the file was refused and "
            "nothing of it was run"
        )
        raise UnsafeCheckpointError(message)

    def find(self, module: str, name: str) -> None:
        dotted = f"{module}.{name}"
        dotted = PYTHON_2_NAMES.get(dotted, dotted)
        if dotted.startswith("__builtin__."):
            dotted = dotted.replace("__builtin__", "builtins", 1)
        if dotted not in self._vocabulary:
            self.refuse(dotted)
        self.stack.append(Global(dotted))

    def find_pair(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.find(module, name)

    def find_on_stack(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            self.refuse("an object whose name is not text")
        self.find(module, name)

    def extension(self, code: int) -> None:
        self.refuse(f"the object behind extension code {code}")

    def call(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        name = self._name_of(function)
        handler = self._vocabulary.called.get(name)
        if handler is None or not isinstance(arguments, tuple):
            self.refuse(f"a call of {name}")
        self.stack.append(handler(*_matching(handler, cast("tuple[Any, ...]", arguments))))

    def new(self, _: Any) -> None:
        arguments, cls = self.stack.pop(), self.stack.pop()
        name = self._name_of(cls)
        if name not in self._vocabulary.built or arguments != ():
            self.refuse(f"a new object of {name}" + ("" if arguments == () else " with arguments"))
        self.stack.append(Instance(name))

    def new_with_keywords(self, _: Any) -> None:
        _, _, cls = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.refuse(f"a new object of {self._name_of(cls)} with keywords")

    def old_style_pair(self, argument: str) -> None:
        self.refuse(argument.replace(" ", ".", 1))

    def old_style_object(self, _: Any) -> None:
        self.refuse(f"a new object of {self._name_of(self.since_mark()[0])}")

    def build(self, _: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(state) is not dict or not all(isinstance(key, str) for key in cast("dict[Any, Any]", state)):
            self.refuse(f"attributes of {self._name_of(target)} that are not a plain dict")
        if isinstance(target, Instance):
            target.state = cast("dict[str, Any]", state)
        elif type(target) is not dict:
            # An ordered dict of torch carries version numbers as an attribute; nobody needs them.
            self.refuse(f"new attributes of {self._name_of(target)}")

    def persistent(self, _: Any) -> None:
        self.stack.append(self._vocabulary.persistent(self.stack.pop()))

    def persistent_text(self, argument: str) -> None:
        self.stack.append(self._vocabulary.persistent(argument))

    def mark(self, _: Any) -> None:
        self._below_marks.append(self.stack)
        self.stack = []

    def since_mark(self, _: Any = None) -> list[Any]:
        items, self.stack = self.stack, self._below_marks.pop()
        return items

    def pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def duplicate(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def short_tuple(self, n: int) -> None:
        items = [self.stack.pop() for _ in range(n)]
        self.stack.append(tuple(reversed(items)))

    def marked_tuple(self, _: Any) -> None:
        items = self.since_mark()
        self.stack.append(tuple(items))

    def marked_list(self, _: Any) -> None:
        items = self.since_mark()
        self.stack.append(items)

    def marked_dict(self, _: Any) -> None:
        items = self.since_mark()
        self.stack.append({})
        self._set(items)

    def append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def append_marked(self, _: Any) -> None:
        self._extend(self.since_mark())

    def set_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def set_marked(self, _: Any) -> None:
        self._set(self.since_mark())

    def check_protocol(self, protocol: int) -> None:
        if protocol > HIGHEST_PROTOCOL:
            message = f"{self._label} uses pickle protocol {protocol}; up to {HIGHEST_PROTOCOL} can be read"
            raise CheckpointError(message)

    def nothing(self, _: Any) -> None:
        pass

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            self.refuse(f"items appended to {self._name_of(target)}")
        cast("list[Any]", target).extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            self.refuse(f"items set in {self._name_of(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing nested tuples can take for ever, so only plain keys are looked at.
            if type(key) not in KEY_TYPES:
                self.refuse(f"a dict with a {type(key).__name__} as key")
            cast("dict[Any, Any]", target)[key] = value

    def _name_of(self, value: Any) -> str:
        return value.name if isinstance(value, Global | Instance) else f"a value of type {type(value).__name__}"


def _matching(handler: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments if the handler takes as many; its own errors must not be mistaken for this one."""
    code = handler.__code__
    least = code.co_argcount - len(handler.__defaults__ or ())
    if not least <= len(arguments) <= code.co_argcount:
        message = "a call with the wrong number of arguments"
        raise ValueError(message)
    return arguments


LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE "
    "SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8".split()
)
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": _Machine.check_protocol,
    "FRAME": _Machine.nothing,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.since_mark,
    "DUP": _Machine.duplicate,
    "MEMOIZE": _Machine.memoize,
    "TUPLE1": lambda machine, _: machine.short_tuple(1),
    "TUPLE2": lambda machine, _: machine.short_tuple(2),
    "TUPLE3": lambda machine, _: machine.short_tuple(3),
    "TUPLE": _Machine.marked_tuple,
    "LIST": _Machine.marked_list,
    "DICT": _Machine.marked_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_marked,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_marked,
    "GLOBAL": _Machine.find_pair,
    "STACK_GLOBAL": _Machine.find_on_stack,
    "EXT1": _Machine.extension,
    "EXT2": _Machine.extension,
    "EXT4": _Machine.extension,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.new,
    "NEWOBJ_EX": _Machine.new_with_keywords,
    "INST": _Machine.old_style_pair,
    "OBJ": _Machine.old_style_object,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
    "PERSID": _Machine.persistent_text,
}
