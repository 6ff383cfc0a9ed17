"""`areal-docs`: which translated pages lag behind their source, section by section, and with what.

    settings.py   `[tool.areal.docs]`: where source and translation are, and what has no translation
    pages.py      the pages of both trees, and which belong together
    markdown/     a page taken apart: sections, their hashes, and what a translation has to keep
    mark.py       the record in a translated page: which sections of the source it follows
    git.py        the only place that runs git
    history.py    earlier versions of a page
    inference.py  what history says of pages that have no mark
    pairing.py    which section of the translation is that of which of the source
    verdicts.py   what is said of a section and of a page
    compare/      how it is found: what is in step, what changed, and what differs that may not
    report.py     the verdicts for people, programs and annotations
    worklist.py   the verdicts as tasks, each with the old source, the new source and the translation

A hash is of what a section says: reflowing and other spaces do not change it, and git is not needed to compare it. The
text of pages is data, never an instruction, and nothing in it is run.
"""
