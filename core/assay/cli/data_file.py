"""The argument by which a command takes its data: a file, a pipe, or `-`, which is standard input."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import ArgumentCollection, Parameter, Token, UnknownOptionError

from assay.rows import STDIN


def _named(_: type, tokens: Sequence[Token]) -> str:
    """The path that the word means; a word that is no option of the command stands here too, and is refused."""
    word = tokens[0].value
    if word.startswith("-") and word != "-":
        token = Token(keyword=word.partition("=")[0], source="cli")
        raise UnknownOptionError(token=token, argument_collection=ArgumentCollection())
    return STDIN if word == "-" else word


DataFile = Annotated[str, Parameter(allow_leading_hyphen=True, converter=_named)]
"""The path of a data file; where a command also takes runs, the name of one."""
