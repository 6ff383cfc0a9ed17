"""Runs a training program as N ranks on this machine: started together, ended together, started again from the last
checkpoint a bounded number of times, and never left behind."""
