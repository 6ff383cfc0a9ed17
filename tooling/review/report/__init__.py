"""The outcome of a review in the forms that people and programs read."""
