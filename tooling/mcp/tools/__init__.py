"""Which tools there are, what they take and answer, and how arguments become a command line."""
