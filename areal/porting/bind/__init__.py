"""From the specs of many configs to expressions over config fields, and the account of every field."""
