"""One adapter per platform, and the table of all. An adapter says where files go and how an expert is written there."""
