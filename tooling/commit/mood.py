"""Recognises words that are not in the imperative mood.

Only forms of verbs that commits begin with are judged, and only where a form can hardly be anything else: "tests" and
"changes" are nouns as well. A subject that begins with another part of speech passes.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VERBS: Final = _words(
    """
    accept add adjust allow adopt align annotate apply assert assign attach avoid bind bring bump cache call
    catch change check choose clarify clean close collect combine compare complete compute configure
    consolidate convert copy correct count create cut deduplicate defer define delete deprecate describe
    detect disable document drop enable ensure enforce exclude expand explain expose extend extract filter
    find finish fix follow forbid forward generate give guard handle harden hide ignore implement improve
    include increase initialize inline insert install integrate introduce invoke keep let limit list load log
    lower make mark merge migrate modify move normalize optimize organize override parse pass patch persist
    pin polish port prefer prepare preserve prevent print propagate protect provide prune publish pull push
    raise read rebuild record reduce refactor refine reformat refuse reject relax release remove rename
    reorder reorganize replace report require reset resolve restore restrict retry return reuse revert rewrite
    run save send separate set shard share show simplify skip sort specify speed split standardize start stop
    store streamline support switch synchronize take test tidy tighten track translate treat trim try tune
    turn unify update upgrade use validate verify warn wire work wrap write
    """
)
IRREGULAR: Final = {
    "brought": "bring",
    "caught": "catch",
    "chose": "choose",
    "did": "do",
    "found": "find",
    "gave": "give",
    "hid": "hide",
    "kept": "keep",
    "made": "make",
    "ran": "run",
    "rewrote": "rewrite",
    "sent": "send",
    "showed": "show",
    "took": "take",
    "wrote": "write",
}
NOUNS: Final = _words(
    """
    accepts assigns binds builds caches calls catches changes checks closes copies counts covers cuts
    documents drops exports extracts filters finds fixes follows forwards guards guides handles ignores
    imports limits lists loads logs marks matches merges moves names passes patches pins ports prints pulls
    pushes raises reads records releases renames reports resets retries returns reverts runs sets shards
    shares shows skips sorts splits starts stops stores supports switches takes tests tracks tries trims tunes
    turns types updates upgrades uses works wraps writes
    """
)
"""Forms that are nouns as often: "tests of the parser"."""
CERTAIN: Final = _words(
    """
    add create delete ensure implement improve introduce refactor remove update
    """
)
"""Verbs whose other forms are nothing else at the beginning of a subject."""
DETERMINERS: Final = _words(
    """
    a all an any both each every it its more some support the these this
    """
)
"""Words that show the one before to be a verb: "fixes the parser", as against "fixed seeds" and "reports that fail"."""


def imperative_of(word: str, following: str = "") -> str | None:
    """Return the imperative of a word that is another form of a verb: "Added" -> "add". None when nothing is wrong, or
    when the word can be read as a noun or an adjective: "worked examples"."""
    lower = word.lower()
    if lower in VERBS:
        return None
    verb = IRREGULAR.get(lower) or next((stem for stem in _stems(lower) if stem in VERBS), None)
    if verb in CERTAIN and lower not in NOUNS:
        return verb
    return verb if following.lower() in DETERMINERS else None


def _stems(word: str) -> list[str]:
    """Verbs that a word may be a form of."""
    for ending in ("ing", "ed", "s"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            stem = word[: -len(ending)]
            stems = [stem, f"{stem}e"]
            if ending == "s":
                stems = [stem, stem.removesuffix("e"), f"{stem.removesuffix('ie')}y"]
            elif ending == "ed":
                stems.append(f"{stem.removesuffix('i')}y")
            if ending != "s" and len(stem) > 2 and stem[-1] == stem[-2]:
                stems.append(stem[:-1])
            return stems
    return []
