"""Turns the facts of single files into uses of packages: follows names through the repository's own modules, classes
and functions, until they end in a package that is asked for, or nowhere."""
