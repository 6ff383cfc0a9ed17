"""The life of a unit: generate, update, rename, undo, each a plan; its status and explanation; carrying a plan out."""
