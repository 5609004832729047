"""The command line: one thin file a verb. `app` finds the verb, `flags` turns its data class into flags."""
