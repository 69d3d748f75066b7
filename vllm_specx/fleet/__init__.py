"""One draft memory, and one prior of the tuner, for many replicas: a store in a Ray actor, and its members.

`FleetServer` is what the actor runs, `Member` what a worker has. Between them is a small process of the worker's own,
the sidecar, which alone imports Ray: see docs/fleet.md.
"""
