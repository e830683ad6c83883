"""A pickle machine that builds data and runs nothing.

Python's unpickler, even with its look-up of names closed, takes objects from the process-wide cache of extension codes,
hashes nested keys until the stack or the patience ends, and makes room for any memo number that a file states. This one
knows names as mere symbols: a name that the caller's vocabulary lacks ends the reading, "calling" a name runs a function
of ours, and an object is a name with a dict of attributes. The standard library's `pickletools` tells opcodes apart, so a
stream of any protocol is understood far enough to say what it asked for. This module must not know torch or checkpoints.
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
PYTHON_2_NAMES = {"long": "int", "unicode": "str"}
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
        called: Names that may be called, with the function of ours that takes the tuple of arguments instead.
        persistent: Takes the persistent identifier of data that is kept outside the stream.
    """

    mentioned: frozenset[str]
    built: frozenset[str]
    called: Mapping[str, Callable[[tuple[Any, ...]], Any]]
    persistent: Callable[[Any], Any]

    def __contains__(self, name: str) -> bool:
        """Return whether the format has the name at all."""
        return name in self.mentioned or name in self.built or name in self.called


def interpret(data: bytes, vocabulary: Vocabulary, label: str) -> Any:
    """Build the object that a pickle stream describes, out of plain containers, `Global` and `Instance`.

    Args:
        data: The stream.
        vocabulary: The names that may appear.
        label: Name of the file, for messages.

    Returns:
        The object on top of the stack where the stream stops.

    Raises:
        UnsafeCheckpointError: The stream asks for an object that the vocabulary lacks, or for a use that it forbids.
        CheckpointError: The stream is damaged or longer than any checkpoint.
    """
    machine = _Machine(vocabulary, label)
    try:
        return machine.run(data)
    except CheckpointError:
        # It is a ValueError too, and already says what is wrong.
        raise
    except MALFORMED as error:
        message = f"{label} is damaged: the description of its contents cannot be read"
        raise CheckpointError(message) from error


class _Machine:
    """Stack, marks and memo of one stream."""

    def __init__(self, vocabulary: Vocabulary, label: str) -> None:
        self.stack: list[Any] = []
        self._vocabulary = vocabulary
        self._label = label
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                return self.stack.pop()
            if count >= MAX_OPCODES:
                message = f"{self._label} describes more objects than any checkpoint has"
                raise CheckpointError(message)
            self.step(opcode.name, argument)
        message = f"{self._label} is damaged: the description of its contents has no end"
        raise CheckpointError(message)

    def step(self, opcode: str, argument: Any) -> None:
        if opcode in LITERALS:
            self.stack.append(argument)
        elif opcode in CONSTANTS:
            self.stack.append(CONSTANTS[opcode]())
        elif opcode in PUTS:
            self._memo[len(self._memo) if argument is None else argument] = self.stack[-1]
        elif opcode == "DUP":
            self.stack.append(self.stack[-1])
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
            f"{self._label} asks for {shown}, which is not part of the checkpoint format; "
            "the file was refused and nothing of it was run"
        )
        raise UnsafeCheckpointError(message)

    def find(self, module: str, name: str) -> None:
        dotted = f"{module}.{name}"
        known = f"builtins.{PYTHON_2_NAMES.get(name, name)}" if module == "__builtin__" else dotted
        if known not in self._vocabulary:
            self.refuse(dotted)
        self.stack.append(Global(known))

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
        self.stack.append(handler(cast("tuple[Any, ...]", arguments)))

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
        # Torch's ordered dicts carry version numbers as an attribute, which nobody needs.
        elif type(target) is not dict:
            self.refuse(f"new attributes of {self._name_of(target)}")

    def persistent(self, identifier: Any) -> None:
        self.stack.append(self._vocabulary.persistent(self.stack.pop() if identifier is None else identifier))

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

    def short_tuple(self, n: int) -> None:
        items = [self.stack.pop() for _ in range(n)]
        self.stack.append(tuple(reversed(items)))

    def push_marked(self, kind: Callable[[list[Any]], Any]) -> None:
        # Popping the mark first exchanges the stack.
        items = self.since_mark()
        self.stack.append(kind(items))

    def marked_dict(self, _: Any) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set(items)

    def check_protocol(self, protocol: int) -> None:
        if protocol > HIGHEST_PROTOCOL:
            message = f"{self._label} uses pickle protocol {protocol}; up to {HIGHEST_PROTOCOL} can be read"
            raise CheckpointError(message)

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            self.refuse(f"items appended to {self._name_of(target)}")
        cast("list[Any]", target).extend(items)

    def set(self, items: list[Any]) -> None:
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


LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE "  # noqa: SIM905 a list would be a line per name
    "SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8".split()
)
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    # The format has no use for sets beyond their items.
    "EMPTY_SET": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
GETS = frozenset(("GET", "BINGET", "LONG_BINGET"))
STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": _Machine.check_protocol,
    "FRAME": lambda *_: None,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.since_mark,
    "TUPLE1": lambda machine, _: machine.short_tuple(1),
    "TUPLE2": lambda machine, _: machine.short_tuple(2),
    "TUPLE3": lambda machine, _: machine.short_tuple(3),
    "TUPLE": lambda machine, _: machine.push_marked(tuple),
    "LIST": lambda machine, _: machine.push_marked(list),
    "DICT": _Machine.marked_dict,
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.extend(machine.since_mark()),
    "FROZENSET": lambda machine, _: machine.push_marked(list),
    "SETITEM": lambda machine, _: machine.set([machine.stack.pop(), machine.stack.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set(machine.since_mark()),
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
    "PERSID": _Machine.persistent,
}
