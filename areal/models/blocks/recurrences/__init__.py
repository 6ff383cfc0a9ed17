"""Linear recurrences as pure functions: whole rows in chunks, with borders of documents inside, or token by token."""
