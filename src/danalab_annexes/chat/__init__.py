"""`danalab chat` in the terminal; tasks of data sets, of a model's name and of dialogues; the reward `code`."""
