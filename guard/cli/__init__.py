"""The `guard` command: one file a group of commands, imported without anything heavy."""
