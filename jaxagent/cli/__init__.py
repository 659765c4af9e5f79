"""The command `jaxagent`: one file a subcommand, each with `add_arguments` and `run`."""
