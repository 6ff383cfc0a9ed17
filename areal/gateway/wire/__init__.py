"""The dialects that agents speak, one file each: requests to the canonical form, answers and errors back."""
