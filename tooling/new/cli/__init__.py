"""The command line: words to a call, a call to a report. What each command does is in `tooling.new.commands`."""
