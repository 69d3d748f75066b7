"""`specx top`: what a running server's speculation does, live."""
