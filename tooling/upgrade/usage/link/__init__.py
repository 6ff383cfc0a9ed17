"""From the facts of single files to uses of packages: names followed through the repository's own modules, classes and
functions, until they end in a package that is asked for, or nowhere."""
