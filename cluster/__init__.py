"""The cluster: configuration, application, command line, life cycle."""
