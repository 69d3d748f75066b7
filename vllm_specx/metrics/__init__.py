"""What drafting does, on the server's own /metrics: counted where it happens, read where it is asked for."""
