"""The protocol: only `server` and what starts it load the SDK."""
