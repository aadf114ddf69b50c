"""The program in an answer: the last fenced block of the asked language, with reasoning left out."""

import re

FAMILIES: dict[str, frozenset[str]] = {
    "python": frozenset({"python", "py", "python3", "py3", "python2", "ipython"}),
    "cpp": frozenset({"cpp", "c++", "cc", "cxx", "c++17", "cpp17", "c++20", "cpp20"}),
    "c": frozenset({"c", "c17", "c11", "h"}),
    "javascript": frozenset({"javascript", "js", "node", "nodejs", "mjs"}),
    "bash": frozenset({"bash", "sh", "shell", "zsh"}),
}
_FENCE = re.compile(r"[ \t]{0,3}(?P<mark>`{3,}|~{3,})[ \t]*(?P<tag>[^`\n]*)")
_OPEN, _CLOSE = re.compile(r"<think(?:ing)?>", re.IGNORECASE), re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_LOOKS: dict[str, re.Pattern[str]] = {
    "python": re.compile(
        r"^(?:from [\w.]+ import |import \w|(?:async )?def \w+\s*\(|class \w+\s*[:(]|@\w|print\s*\(|"
        r"(?:for|while|if|with|try)\b.*:\s*(?:#.*)?$|\w+(?:\.\w+)*\(.*\)\s*$|"
        r"[A-Za-z_]\w*(?:\[[^\]\n]*\]|\.\w+|[ \t]*,[ \t]*[A-Za-z_]\w*)*[ \t]*[-+*/|&]?=[^=])",
        re.MULTILINE,
    ),
    "cpp": re.compile(r"^\s*#\s*include\b|\bint\s+main\s*\(", re.MULTILINE),
    "c": re.compile(r"^\s*#\s*include\b|\bint\s+main\s*\(", re.MULTILINE),
    "javascript": re.compile(r"^\s*(?:const|let|var|function|class|import|console\.)\b", re.MULTILINE),
    "bash": re.compile(r"\A#!|^\s*(?:echo|read|for|while|if)\b", re.MULTILINE),
}


def extract(response: str, language: str = "python", *, continues: bool = False) -> str | None:
    """The program that `response` gives, or None where it gives none.

    The last closed or unfinished fence with a tag of the language wins, then the last one without a tag; fences of
    another language (sample outputs, shell commands) never count. Without any fence, a text that looks like code is
    taken whole; `continues` also takes one that starts indented, as the continuation of a given head.
    """
    text = without_reasoning(response.replace("\r\n", "\n").replace("\r", "\n"))
    blocks, fenceless = _blocks(text)
    family = FAMILIES.get(language.lower(), frozenset({language.lower()}))
    for wanted in (family, frozenset({""})):
        for tag, body in reversed(blocks):
            if tag in wanted and body.strip():
                return body
    if blocks:
        return None
    looks = _LOOKS.get(language.lower())
    indented = continues and bool(re.match(r"\n*(?: {2,}|\t)\S", fenceless))
    if fenceless.strip() and (indented or (looks is not None and looks.search(fenceless))):
        return fenceless.strip("\n").rstrip()
    return None


def without_reasoning(text: str) -> str:
    """`text` after its reasoning; reasoning that never ends leaves nothing after it."""
    ends = [match.end() for match in _CLOSE.finditer(text)]
    text = text[ends[-1] :] if ends else text
    start = _OPEN.search(text)
    return text[: start.start()] if start else text


def _blocks(text: str) -> tuple[list[tuple[str, str]], str]:
    """Fenced blocks as (tag, body), and the text with its fence lines taken out; a last fence may be unfinished."""
    blocks: list[tuple[str, str]] = []
    outside: list[str] = []
    body: list[str] = []
    mark, tag = "", ""
    lines = text.split("\n")
    for line in lines:
        match = _FENCE.fullmatch(line.rstrip())
        if mark:
            if match and match["mark"][0] == mark[0] and len(match["mark"]) >= len(mark) and not match["tag"]:
                blocks.append((tag, "\n".join(body)))
                mark = ""
            else:
                body.append(line)
        elif match:
            mark, tag, body = match["mark"], _tag(match["tag"]), []
        else:
            outside.append(line)
    if mark and tag == "" and not "".join(body).strip():
        # A closing fence without an opening one: what came before it is the program.
        return blocks, "\n".join(outside)
    if mark:
        blocks.append((tag, "\n".join(body).rstrip("\n")))
    return blocks, "\n".join(outside)


def _tag(info: str) -> str:
    words = info.strip().strip("{}.").lower().split()
    return words[0].strip("{}.,:") if words else ""
