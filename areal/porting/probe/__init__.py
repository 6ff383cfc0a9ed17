"""The Hugging Face side: where a model comes from, tiny instances of it, and everything that one forward does."""
