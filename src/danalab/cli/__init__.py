"""The command line: one thin file for each command. `app` finds the verb, `flags` turns its data class into flags."""
