"""Our proposers on vLLM's model runner V2."""
