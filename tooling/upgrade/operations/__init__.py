"""Does what the commands do with the parts of `tooling.upgrade`; knows nothing of command lines."""
