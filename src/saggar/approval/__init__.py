"""The manager who reviews unusual orders: questions, answers, and the channels between."""
