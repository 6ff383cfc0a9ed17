"""Reads Python without running it: what every command that asks questions about source stands on.

    source                        text to trees and back, dotted names, which module a file is
    module, source_modules        one file as a tree with its names; names followed through the files of a tree
    standard_library              what Python's own classes have
    tables, scope, bound_names    which names a file, class or function binds, and how
    functions, instances          what a function takes, gives and announces; what methods set on `self`
    operations, values            what an expression is worth, as far as constants go
    execution                     statements followed for the names that they make
    access_paths                  how a value comes about, whatever it is in one version of a package
    conditions, versions,         when code is reached: versions, probes, and what helper functions make of them
    condition_reader
    symbols                       a whole tree of source: names, members, calls and values, followed on demand

Three answers everywhere: known, known to be absent, and not known, which is never a guess.
"""
