"""Whether what the pages say is true: the things they mention exist, and they stay short."""
