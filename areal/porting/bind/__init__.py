"""Derives expressions over config fields from the specs of many configs, and accounts for every field."""
