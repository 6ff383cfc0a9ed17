"""Whether the declared versions can be installed together: locks made anew, conflicts as who-requires-what."""
