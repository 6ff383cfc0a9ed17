"""The forms of the program `areal-mcp` that print and end."""
