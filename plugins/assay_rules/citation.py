"""`citation`: the response cites the task's sources, and what it quotes is really in them."""

import re
import unicodedata
from dataclasses import dataclass

from pydantic import Field

from assay.component import Options
from assay.contracts import Evidence, Rollout, Task, Verdict
from assay_rules.text import answer_zone, shown

_CITATION = re.compile(r"\[([^\[\]\n]{1,80})\]")
_QUOTE = re.compile(r"\"([^\"\n]{1,4000})\"|\u201c([^\u201c\u201d\n]{1,4000})\u201d|<quote>([^<]{1,4000})</quote>")


class CitationOptions(Options):
    """How much must be cited and quoted."""

    min_citations: int = Field(default=1, ge=0)
    """Different sources that must be cited, as `[1]` or `[name]`; `[1, 2]` cites two."""
    min_quotes: int = Field(default=0, ge=0)
    """Different quotations that must be there, in double quotation marks or `<quote>` tags."""
    min_quote_words: int = Field(default=4, ge=1)
    """Shorter quoted text is a name or a term, and no quotation."""
    quote_from_cited: bool = True
    """A quotation must be in a source that the response cites; otherwise any source will do."""


@dataclass(frozen=True)
class Citation:
    """1 where enough is cited and quoted, every citation names a source and every quotation is verbatim, else 0.

    The sources are the task's fact `sources`: a table from name to text, or a list of texts named 1, 2, 3, ...
    """

    options: CitationOptions

    def judge(self, task: Task, rollout: Rollout) -> Verdict:
        """The verdict on one rollout."""
        problem = self.check_task(task)
        if problem is not None:
            return Verdict.abstain("sources_missing", fault="ours", evidence=problem)
        zone = answer_zone(rollout.text)
        if zone is None or not zone.strip():
            return Verdict.abstain("no_answer", evidence="the response has no text after its reasoning")
        wrong = self._problem(zone, _sources(task))
        return Verdict.score(
            float(wrong is None), evidence=Evidence(kind="citation", summary=wrong or "all citations and quotes hold")
        )

    def check_task(self, task: Task) -> str | None:
        """One sentence when the task has no sources."""
        if _sources(task):
            return None
        return f"the fact 'sources' is no table or list of texts; found {type(task.facts.get('sources')).__name__}"

    def _problem(self, zone: str, sources: dict[str, str]) -> str | None:
        options = self.options
        quotes = {_normal(next(filter(None, match.groups()))) for match in _QUOTE.finditer(zone)}
        quotes = {quote for quote in quotes if len(quote.split()) >= options.min_quote_words}
        # A bracket inside a quotation belongs to the source's text, not to the response.
        cited = [name.strip() for found in _CITATION.findall(_QUOTE.sub(" ", zone)) for name in _names(found, sources)]
        unknown = next((name for name in cited if name not in sources), None)
        if unknown is not None:
            return f"cites {shown(unknown, 40)}, which is no source"
        if len(set(cited)) < options.min_citations:
            return f"{len(set(cited))} sources cited, asked for {options.min_citations}"
        if len(quotes) < options.min_quotes:
            return f"{len(quotes)} quotations, asked for {options.min_quotes}"
        allowed = set(cited) if options.quote_from_cited and cited else set(sources)
        texts = [_normal(sources[name]) for name in sorted(allowed)]
        false = next((quote for quote in sorted(quotes) if not any(quote in text for text in texts)), None)
        return None if false is None else f"not in the sources: {shown(false)}"


def _sources(task: Task) -> dict[str, str]:
    sources = task.facts.get("sources")
    if isinstance(sources, list):
        return {str(index): str(text) for index, text in enumerate(sources, 1)}
    return {key.strip(): str(text) for key, text in sources.items()} if isinstance(sources, dict) else {}


def _names(found: str, sources: dict[str, str]) -> list[str]:
    """The sources that one bracket names: the whole of it, or each part between commas."""
    return [found] if found.strip() in sources else re.split(r"[,;]", found)


def _normal(text: str) -> str:
    """`text` with plain quotation marks and single blanks, composed; its words are untouched."""
    text = unicodedata.normalize("NFKC", text).translate(str.maketrans("\u2018\u2019\u201c\u201d", "''\"\""))
    return " ".join(text.split())
