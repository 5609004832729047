"""`danalab bench gpu`: what a GPU must show, in sections that are processes with a time limit each."""
