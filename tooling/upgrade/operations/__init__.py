"""What the commands do: the parts of `tooling.upgrade` put together, without a word about command lines."""
