"""What a model costs each rank before any rank exists: `areal plan`. Nothing here holds a weight."""
