"""One draft length a step for the drafters that vLLM runs itself; what of it needs no vLLM."""
