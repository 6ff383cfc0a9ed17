"""What engines share whose servers are processes of their own: client, routing, retries, weight updates, versions."""
