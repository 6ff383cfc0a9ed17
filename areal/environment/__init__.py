"""Environments: where they run, how they are found and checked, and adapters to packages of others.

Read in this order: `areal.api.environment` (the contract), config (limits and hosts), pool (slots, time limits,
faults), watchdog (for the process of the rollouts), subprocess_host with _child (processes of their own), http_host and
server (other machines), wire (records as JSON), check (is it deterministic?), registry and adapters. Episodes are
driven by `areal.workflow.environment`.

An environment never sees a model, a token or another episode; nothing in this package imports what trains.
"""
