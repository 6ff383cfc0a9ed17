"""A tree of source as symbols, found on demand and never loaded whole. Three answers everywhere: found, absent, open.

    symbol                                what trees define, as records
    store, definitions                    files by dotted path, kept facts; symbols and the way back to their text
    made_names, modules, constants        names of modules, however they come about
    members, fields                       classes, their order, attributes and fields
    decorators, signatures, keywords      how things are called
    annotations, inference, follow        values of expressions, of the tree and of those who use it
    targets, calls                        what expressions mean, what calls reach, and how arguments are bound
    text_search                           questions to the text of a whole tree
    tree                                  puts the parts together: they see each other as `definitions.Model`

Open (a native module without a stub, a `__getattr__` nobody understands, an unknown base class, `setattr` and
`globals()` writes, a star from outside) is never grounds for saying that something breaks.
"""
