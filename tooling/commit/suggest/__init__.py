"""Type, scope and skeleton of a message, each with the evidence for it and what else it could be."""
