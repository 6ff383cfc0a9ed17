"""What each expert answers for: its files by globs, and a block on its page that the code itself writes."""
