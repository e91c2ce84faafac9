from knee.simulator import events_of, simulate  # noqa: F401  temporary
